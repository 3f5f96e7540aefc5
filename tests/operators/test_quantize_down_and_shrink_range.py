"""`quantize_down_and_shrink_range`: the two operators that it combines, edge cases, and errors."""

import numpy as np
import pytest
from support.comparison import assert_equal, assert_refused

import jquant

FLOAT32 = np.float32


@pytest.mark.gate
def test_requantize_to_the_actual_range():
    """It is `requantize` to the result of `requantization_range`."""
    x = np.random.default_rng(2).integers(-(2**24), 2**26, 1000, np.int32)
    actual_range = jquant.requantization_range(x, -60.0, 60.0)
    assert actual_range.output_min < 0 < actual_range.output_max
    expected = jquant.requantize(x, -60.0, 60.0, *actual_range, dtype="quint8")
    assert_equal(jquant.quantize_down_and_shrink_range(x, -60.0, 60.0), expected)
    assert {0, 255} < set(np.asarray(expected.output).tolist())


@pytest.mark.parametrize(
    ("x", "bounds", "output", "low", "high"),
    [
        ([-(2**31), 0, 2**31 - 1], (-1, 1), [0, 128, 255], -1, 1),  # the whole range; half a step is rounded away from zero
        ([-7, -7], (2, 3), [255, 255], 0, 2.5),  # the new range includes 0
        ([-(2**31)] * 2, (-1, 1), [0, 0], -1, -1),  # both ends are the minimum
        ([0, 5], (0, 0), [0, 0], 0, 0),
    ],
)
def test_edges(x, bounds, output, low, high):
    actual = jquant.quantize_down_and_shrink_range(np.int32(x), *bounds)
    assert_equal(actual, jquant.QuantizeOutput(np.uint8(output), FLOAT32(low), FLOAT32(high)))


def test_empty_arrays():
    output = jquant.quantize_down_and_shrink_range(np.zeros((0, 3), np.int32), -2, 1)
    assert_equal(output, jquant.QuantizeOutput(np.zeros((0, 3), np.uint8), FLOAT32(0), FLOAT32(-2)))


X = np.zeros((3, 2), np.int8)
REFUSED_TYPES = [
    (lambda: jquant.quantize_down_and_shrink_range(X, 0, 1), "quantize_down_and_shrink_range: input has data type INT8")
]


@pytest.mark.parametrize(("call", "message"), REFUSED_TYPES)
def test_refuses_types(call, message):
    assert_refused(call, message, jquant.DescriptorTypeError)
