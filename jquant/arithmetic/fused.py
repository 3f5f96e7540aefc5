"""A fused multiply-add, made of float32 operations: rounded once, as in hardware, with the same bits on every platform."""

import jax
import jax.numpy as jnp

from jquant.arithmetic import exact, float_bits
from jquant.arithmetic.double_float import two_product, two_sum


def multiply_add(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """``fl(a * b + c)``, of float32 numbers whose product is far from subnormal.

    After Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums" (2008): the small parts are added first, and
    rounded to odd, so that the last rounding gives what rounding the exact sum would.
    """
    a, b, c = jnp.broadcast_arrays(a, b, c)
    product = two_product(a, b)
    small = two_sum(c, product.low)
    large = two_sum(product.high, small.high)
    return exact.sum(large.high, _sum_to_odd(small.low, large.low))


def _sum_to_odd(a: jax.Array, b: jax.Array) -> jax.Array:
    """``a + b``, rounded to odd: if it is inexact, the neighbouring float32 with the odd significand."""
    nearest, error = two_sum(a, b)
    bits = float_bits.bits(nearest)
    outwards = (error > 0) == (nearest > 0)
    neighbour = float_bits.from_bits(jnp.where(outwards, bits + 1, bits - 1))
    return jnp.where((error != 0) & (bits & 1 == 0), neighbour, nearest)
