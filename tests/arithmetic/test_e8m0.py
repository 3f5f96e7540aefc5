"""`jquant.arithmetic.e8m0` against float64, in which its products are exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal

from jquant.arithmetic import e8m0

FLOAT32 = np.float32


def any_bits(count: int) -> np.ndarray:
    """Float32 numbers of random bits, a third of them subnormal or small."""
    bits = np.random.default_rng(0).integers(0, 2**32, count, np.uint32)
    bits[: count // 3] &= 0x80FFFFFF
    return bits.view(FLOAT32)


def test_every_number():
    codes = np.arange(256, dtype=np.uint8)
    expected = np.append(2.0 ** np.arange(-127, 128), np.nan).astype(FLOAT32)
    assert_equal(jax.jit(e8m0.widen)(codes.view(e8m0.DTYPE)), expected)
    assert_equal(codes.view(e8m0.DTYPE).astype(FLOAT32), expected)
    assert_equal(jax.jit(e8m0.narrow)(expected), codes.view(e8m0.DTYPE))


@pytest.mark.parametrize("operation", ["product", "quotient"])
def test_products_are_rounded_once(operation):
    """With every scale: subnormal operands and results, their ties, infinities and NaN."""
    codes = np.arange(256, dtype=np.uint8)
    next_to_1 = 1 + np.arange(64, dtype=FLOAT32) * FLOAT32(2**-23)
    x = np.concatenate([any_bits(3000), FLOAT32([0, -0.0, np.inf, -np.inf, np.nan]), next_to_1])
    exponent = np.where(codes == 255, np.nan, (codes - 127.0) * (1 if operation == "product" else -1))[:, None]
    with np.errstate(over="ignore", invalid="ignore"):  # at signalling NaN
        expected = (x.astype(np.float64) * 2.0**exponent).astype(FLOAT32)
    function = jax.jit(getattr(e8m0, operation))
    assert_equal(function(x, codes[:, None].view(e8m0.DTYPE)), expected)


def test_scaled_integers():
    """Results that are a float32, or larger than any."""
    integers, exponents = np.r_[:130, 2**22 + 1, 2**23][:, None], np.arange(-149, 140)
    actual = jax.jit(e8m0.scaled_integer)(*map(jnp.int32, np.broadcast_arrays(integers, exponents)))
    with np.errstate(over="ignore"):
        assert_equal(actual, (integers * 2.0**exponents).astype(FLOAT32))
