"""`requantize_per_channel`: against the formula, ties, saturation, NaN, empty arrays, and errors."""

import numpy as np
import pytest
from support.comparison import assert_equal, assert_refused, refusals

import jquant
from jquant.cases import samples
from jquant.reference import requantization as reference

FLOAT32 = np.float32


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_formula(dtype):
    rng = np.random.default_rng(0)
    x = samples.integers(rng, np.int32, 5000, 4) >> rng.integers(0, 31, (5000, 4), np.int32)
    low, high = np.sort(FLOAT32([[-6, -1, 2, -1e-3], [6, 0.3, 7, 1e9]]), axis=0)
    for requested in ((-6, 6), (-0.1, 3), (-1e9, 1e9)):
        requested = tuple(map(FLOAT32, requested))
        expected = reference.requantize_per_channel(x, low, high, *requested, dtype)
        assert_equal(tuple(jquant.requantize_per_channel(x, low, high, *requested, dtype=dtype)), expected)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.int8, [-128, -2, 0, 0, 0, 2, 126, 127, 127]), (np.uint8, [0, 0, 0, 0, 0, 2, 126, 128, 255])],
)
def test_ties_are_even_and_the_ends_saturate(dtype, expected):
    """The ranges halve each integer: the channel's range is half that of int32, and the requested one has steps of 1."""
    x = np.int32([-(2**31), -3, -1, 0, 1, 3, 253, 255, 2**31 - 1])[:, None]
    largest = np.iinfo(dtype).max
    output = jquant.requantize_per_channel(x, FLOAT32([-(2.0**30)]), FLOAT32([0]), -largest, largest, dtype=dtype)
    assert_equal(output, jquant.QuantizeOutput(dtype(expected)[:, None], FLOAT32(-largest), FLOAT32(largest)))


def test_nan_gives_0():
    x = np.int32([[-5], [0], [7]])
    for bound, requested, expected in ((1, 0, [0, 0, 255]), (0, 0, [0, 0, 0]), (np.nan, 1, [0, 0, 0])):
        output = jquant.requantize_per_channel(x, FLOAT32([bound]), FLOAT32([bound]), 0, requested).output
        assert_equal(output, np.uint8(expected)[:, None])


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0,)], ids=str)
def test_empty_arrays(shape):
    bounds = np.ones(shape[-1], FLOAT32)
    output, low, high = jquant.requantize_per_channel(np.zeros(shape, np.int32), -bounds, bounds, -2, 1)
    assert_equal((output, low, high), (np.zeros(shape, np.uint8), FLOAT32(-2), FLOAT32(1)))


ACCUMULATORS = np.zeros((3, 2), np.int32)
PAIR = FLOAT32([1, 1])
REFUSED = [
    (
        lambda: jquant.requantize_per_channel(ACCUMULATORS, -PAIR, PAIR, 0, 1, dtype="qint8"),
        "requested_output_min is 0.0; for out_type INT8 it must be less than 0",
    )
]
REFUSED_TYPES = [
    (
        lambda: jquant.requantize_per_channel(ACCUMULATORS, -PAIR, PAIR, 0, 1, dtype="qint16"),
        "requantize_per_channel: dtype is INT16; the operator allows quint8 (UINT8), qint8 (INT8)",
    )
]


@refusals(REFUSED, REFUSED_TYPES)
def test_refuses(call, message, error):
    assert_refused(call, message, error)
