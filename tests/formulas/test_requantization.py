"""The fixed-point arithmetic of requantization, which its operators show only in part."""

import jax
import numpy as np

from jquant.formulas import requantization

FLOAT32 = np.float32


def test_quotients_of_the_fixed_point():
    """They equal NumPy's float64, whose last bit hardly ever shows in the 8 bits of a result."""
    rng = np.random.default_rng(3)
    x, width = (10 ** rng.uniform(-9, 9, (2, 100_000))).astype(FLOAT32)
    x[:1000] = width[:1000] * 4
    x = np.minimum(x, width * FLOAT32(2**36))
    low, high = jax.jit(requantization._doubled_steps)(x, width)
    quotients = 255.0 * 2**16 * x.astype(np.float64) / width
    expected = np.floor(2 * quotients).astype(np.uint64)
    np.testing.assert_array_equal((np.asarray(high).astype(np.uint64) << 32) | np.asarray(low), expected)
