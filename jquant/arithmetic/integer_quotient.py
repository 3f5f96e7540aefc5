"""Quotients rounded to int8, in the body of a kernel: a third of the instructions of correctly rounded quotients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jquant.arithmetic.float_bits import FRACTION, INFINITY, SIGN
from jquant.lowering.bitcast import bitcast_unguarded

_ONE = 127 << 23  # the bits of 1.0
_HIGH_HALF = ~0xFFF  # the upper 12 bits of a significand
_SHIFT = 1.5 * 2**23  # added to an integer, it leaves the integer in the last bits
_SHIFT_BITS = 0x4B400000


class Divisor(NamedTuple):
    """What `rounded` needs of a divisor d, of the shape of d.

    Attributes:
      factors: two powers of two, of which the first has the sign of d, whose product brings x / d to x / significand.
      high, low: the significand of d, from 1 to 2, as a sum of two numbers of 12 bits.
      reciprocal: of the significand, about.
      half_ulp: the significand times 2**-24.
    """

    factors: tuple[jax.Array, jax.Array]
    high: jax.Array
    low: jax.Array
    reciprocal: jax.Array
    half_ulp: jax.Array


def divisor(d: jax.Array) -> Divisor:
    """Prepares float32 `d`. By an infinity or NaN, everything is 0; by 0, it is infinite, with the sign of x / d."""
    bits = bitcast_unguarded(d, jnp.int32)
    exponent = (bits >> 23) & 0xFF
    is_finite = exponent < 0xFF
    shift = 127 - exponent  # by two factors, because 2.0 ** -127 is not a normal number
    first, second = shift >> 1, jnp.where(exponent > 0, shift - (shift >> 1), 127)
    first, second = ((first + 127) << 23) | (bits & SIGN), (second + 127) << 23
    significand = jnp.where(is_finite & (exponent > 0), (bits & FRACTION) | _ONE, _ONE)
    high = bitcast_unguarded(significand & _HIGH_HALF, jnp.float32)
    significand = bitcast_unguarded(significand, jnp.float32)

    def factor(bits: jax.Array) -> jax.Array:
        return bitcast_unguarded(jnp.where(is_finite, bits, 0), jnp.float32)

    return Divisor(
        factors=(factor(first), factor(second)),
        high=high,
        low=significand - high,
        reciprocal=1 / significand,
        half_ulp=significand * jnp.float32(2**-24),
    )


def rounded(x: jax.Array, d: Divisor) -> jax.Array:
    """``sat(rne(fl(x / d)))`` of float32 in int8; NaN becomes 0.

    An approximate quotient gives an integer n that is next to the result: n or n + 1. Which of the two depends on the sign
    of ``x - (n + 1/2) * d``, whose products and differences are exact where that is near 0. ``fl(x / d)`` equals n + 1/2 up
    to half an ulp of n + 1/2, in either direction; then the even one of the two is the result. (A quotient never lies
    midway between two floats.)
    """
    x = x * d.factors[0] * d.factors[1]
    x = lax.select(x == x, x, lax.full_like(x, 0))
    below = lax.clamp(jnp.float32(-128), x * d.reciprocal - 0.5, jnp.float32(126))
    shifted = bitcast_unguarded(below + jnp.float32(_SHIFT), jnp.int32)
    n = shifted - _SHIFT_BITS
    tie = n.astype(jnp.float32) + 0.5
    remainder = x - tie * d.high - tie * d.low
    power_of_two = bitcast_unguarded(bitcast_unguarded(tie, jnp.int32) & INFINITY, jnp.float32)
    # Up from an even n only beyond the tie, up from an odd n from the tie on.
    half_ulp = bitcast_unguarded(bitcast_unguarded(power_of_two * d.half_ulp, jnp.int32) ^ (shifted << 31), jnp.float32)
    return (n + (remainder > half_ulp).astype(jnp.int32)).astype(jnp.int8)
