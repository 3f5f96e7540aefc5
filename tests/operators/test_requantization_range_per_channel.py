"""`requantization_range_per_channel`: NaN in its operands, derivatives, and errors."""

import jax
import numpy as np
import pytest
from support.comparison import assert_refused

import jquant

FLOAT32 = np.float32


def test_nan_in_a_range_per_channel():
    x, one = np.full((4, 2), 2**30, np.int32), FLOAT32([1, 1])
    assert jquant.requantization_range_per_channel(x, FLOAT32([np.nan, -3]), one).output_max == 1.5
    assert jquant.requantization_range_per_channel(x, -one, one, clip_value_max=np.nan).output_max == 0.5


def test_derivatives_in_the_ranges():
    x, bounds = np.int32([[2**30, -(2**29)]]), FLOAT32([3, 1])
    gradient = jax.grad(lambda high: jquant.requantization_range_per_channel(x, -bounds, high).output_max)
    np.testing.assert_array_equal(gradient(bounds * 2), [0.5, 0])


ACCUMULATORS = np.zeros((3, 2), np.int32)
PAIR = FLOAT32([1, 1])
REFUSED = [
    (
        lambda: jquant.requantization_range_per_channel(ACCUMULATORS, 0, 1),
        "input_min has shape (); with axis=1 it must be (2,)",
    ),
    (lambda: jquant.requantization_range_per_channel(np.int32(1), 0, 1), "input is a scalar; it must have channels"),
    (
        lambda: jquant.requantization_range_per_channel(ACCUMULATORS, -PAIR, PAIR, clip_value_max=PAIR),
        "clip_value_max has shape (2,), but must have 1 element",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refuses(call, message):
    assert_refused(call, message)
