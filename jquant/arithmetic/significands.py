"""Float32 numbers, taken apart into sign, exponent and significand, and assembled again."""

import jax
import jax.numpy as jnp
from jax import lax

from jquant.arithmetic.float_bits import FRACTION, HIDDEN_BIT, INFINITY, bits, from_bits
from jquant.lowering.bitcast import bitcast_unguarded


def power_of_two(exponent: jax.Array) -> jax.Array:
    """``2.0 ** exponent``, for the exponents of normal numbers."""
    return from_bits((exponent + 127) << 23)


def decompose(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Biased exponent and 24-bit integer significand: ``abs(x) == significand * 2.0 ** (exponent - 150)``."""
    return exponent_and_significand(bits(x))


def exponent_and_significand(bits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`decompose` of a float32 with these bits."""
    return (bits >> 23) & 0xFF, (bits & FRACTION) | HIDDEN_BIT


def is_normal_exponent(exponent: jax.Array) -> jax.Array:
    """Whether a biased exponent is that of a normal number."""
    return (exponent > 0) & (exponent < 0xFF)


def scaled(significand: jax.Array, shift: jax.Array | int) -> jax.Array:
    """``float32(significand) * 2 ** shift``"""
    return bitcast_unguarded((significand & FRACTION) | ((150 + shift) << 23), jnp.float32)


def assemble(sign: jax.Array, exponent: jax.Array, significand: jax.Array) -> jax.Array:
    """The float32 of a sign bit, a biased exponent and a significand in [2**23, 2**24]; 0 in place of a subnormal.

    The arguments were computed from bits, as by `decompose`.
    """
    # Added, not or-ed: the hidden bit, and a significand of 2**24, carry into the exponent.
    magnitude = ((exponent - 1) << 23) + significand
    magnitude = lax.select(exponent <= 0, jnp.zeros_like(magnitude), magnitude)
    magnitude = lax.select(exponent >= 0xFF, jnp.full_like(magnitude, INFINITY), magnitude)
    return bitcast_unguarded(sign | magnitude, jnp.float32)


def nearest_integer_quotient(numerator: jax.Array, divisor: jax.Array, approximation: jax.Array) -> jax.Array:
    """``rne(numerator / divisor)`` in integers, from a float32 `approximation` of it that is off by 2 at most.

    `numerator` is given modulo 2**32; the remainder is small enough to be exact anyway.
    """
    quotient = approximation.astype(jnp.int32)
    remainder = numerator - quotient * divisor
    for _ in range(3):
        odd = quotient & 1
        step = (2 * remainder + odd > divisor).astype(jnp.int32) - (2 * remainder - odd < -divisor).astype(jnp.int32)
        quotient, remainder = quotient + step, remainder - step * divisor
    return quotient
