"""`jquant.arithmetic.significands` against float64."""

import jax
import numpy as np
import pytest

from jquant.arithmetic import significands

FLOAT32 = np.float32


@pytest.mark.parametrize("error", [-2, -1, 0, 1, 2])
def test_quotient_from_an_approximation(error):
    rng = np.random.default_rng(3)
    x, d = (rng.uniform(1, 2, 1_000_000).astype(FLOAT32) for _ in range(2))
    integers = [(value.view(np.int32) & (2**23 - 1) | 2**23).astype(np.int64) for value in (x, d)]
    shift = 23 + (integers[0] < integers[1])
    numerator = integers[0] << shift
    expected = np.rint(numerator / integers[1]).astype(np.int32)  # 53 bits are enough: there are no ties
    approximation = (expected + error).astype(FLOAT32)
    wrapped = numerator.astype(np.uint64).astype(np.uint32).view(np.int32)
    corrected = jax.jit(significands.nearest_integer_quotient)(wrapped, integers[1].astype(np.int32), approximation)
    np.testing.assert_array_equal(corrected, expected)
