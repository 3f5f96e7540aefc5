"""The float32 arithmetic of the observers."""

import jax
import numpy as np
from support.comparison import assert_equal

from jquant.calibration import arithmetic
from jquant.cases import samples


def test_logarithm():
    """To within 2 ulp, over all exponents and next to 1."""
    x = abs(samples.any_floats(np.random.default_rng(0), 100_000))
    x = np.concatenate([x[np.isfinite(x) & (x > 0)], np.linspace(0.5, 2, 10_001)]).astype(np.float32)
    near_one = np.nextafter(np.float32(1), np.float32([0, 2]))
    x = np.concatenate([x, near_one])
    actual, expected = np.asarray(jax.jit(arithmetic.logarithm)(x), np.float64), np.log(x.astype(np.float64))
    assert np.max(abs(actual - expected) / np.spacing(abs(expected).astype(np.float32))) < 2


def test_pairwise_sum():
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    expected = x
    while expected.size > 1:
        expected = np.add(*np.split(expected, 2))
    assert_equal(jax.jit(arithmetic.pairwise_sum)(x), expected[0])
