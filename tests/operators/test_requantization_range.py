"""`requantization_range`: empty arrays, derivatives, and errors."""

import jax
import numpy as np
from support.comparison import assert_equal, assert_refused, refusals

import jquant

FLOAT32 = np.float32


def test_range_without_elements():
    actual = jquant.requantization_range(np.zeros((0, 3), np.int32), -2, 1)
    assert_equal(list(actual), [FLOAT32(0), FLOAT32(-2)])


def test_derivatives_in_the_range():
    x = np.int32([-(2**30), 2**29])
    jacobian = jax.jacrev(lambda *bounds: jquant.requantization_range(x, *bounds), argnums=(0, 1))
    (min_low, min_high), (max_low, max_high) = jacobian(-2.0, 2.0)
    assert (min_low, min_high, max_low, max_high) == (0.75, 0.25, 0.375, 0.625)
    (min_low, min_high), _ = jax.jacrev(lambda *bounds: jquant.requantization_range(-x, *bounds), argnums=(0, 1))(1.0, 2.0)
    assert (min_low, min_high) == (0, 0)  # the minimum is 0, not the smallest input


X, ACCUMULATORS = np.zeros((3, 2), np.int8), np.zeros((3, 2), np.int32)
PAIR = FLOAT32([1, 1])
REFUSED = [(lambda: jquant.requantization_range(ACCUMULATORS, PAIR, PAIR), "requantization_range: input_min has shape (2,)")]
REFUSED_TYPES = [
    (
        lambda: jquant.requantization_range(X, 0, 1),
        "requantization_range: input has data type INT8; the operator allows qint32 (INT32)",
    )
]


@refusals(REFUSED, REFUSED_TYPES)
def test_refuses(call, message, error):
    assert_refused(call, message, error)
