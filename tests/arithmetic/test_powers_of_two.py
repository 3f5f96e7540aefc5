"""`jquant.arithmetic.powers_of_two` against float64, in which all of its products are exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import assert_equal

from jquant.arithmetic import powers_of_two

FLOAT32 = np.float32


def any_bits(count: int) -> np.ndarray:
    """Of float32, a third of them subnormal, or next to that."""
    bits = np.random.default_rng(0).integers(0, 2**32, count, np.uint32)
    bits[: count // 3] &= 0x80FFFFFF
    return bits.view(FLOAT32)


def test_every_number():
    codes = np.arange(256, dtype=np.uint8)
    expected = np.append(2.0 ** np.arange(-127, 128), np.nan).astype(FLOAT32)
    assert_equal(jax.jit(powers_of_two.widen)(codes.view(powers_of_two.DTYPE)), expected)
    assert_equal(codes.view(powers_of_two.DTYPE).astype(FLOAT32), expected)
    again = jax.jit(powers_of_two.narrow)(expected)
    assert_equal(again, codes.view(powers_of_two.DTYPE))


@pytest.mark.parametrize("operation", ["product", "quotient"])
def test_products_are_rounded_once(operation):
    """Operands and results that are subnormal, ties of these, infinities and NaN, with every scale."""
    codes = np.arange(256, dtype=np.uint8)
    x = np.concatenate([any_bits(3000), FLOAT32([0, -0.0, np.inf, -np.inf, np.nan]), 1 + np.arange(64) * FLOAT32(2**-23)])
    exponent = np.where(codes == 255, np.nan, (codes - 127.0) * (1 if operation == "product" else -1))[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (x.astype(np.float64) * 2.0**exponent).astype(FLOAT32)
    function = jax.jit(getattr(powers_of_two, operation))
    assert_equal(function(x, codes[:, None].view(powers_of_two.DTYPE)), expected)


def test_integers():
    """Whatever is a float32, or is larger than all."""
    integers, exponents = np.r_[:130, 2**22 + 1, 2**23][:, None], np.arange(-149, 140)
    actual = jax.jit(powers_of_two.scaled_integer)(*map(jnp.int32, np.broadcast_arrays(integers, exponents)))
    with np.errstate(over="ignore"):
        assert_equal(actual, (integers * 2.0**exponents).astype(FLOAT32))
