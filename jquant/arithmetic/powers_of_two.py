"""The type of block scales, powers of two from 2**-127 to 2**127 and NaN; and numbers scaled by them.

A number of the type is its exponent, biased by 127, in 8 bits without a sign; ONNX calls it FLOAT8E8M0. Everything here is
integer arithmetic on the bits, because its smallest number is a subnormal float32, which backends flush to zero. A product
with a power of two is only rounded if it is subnormal itself.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

DTYPE = jnp.dtype("float8_e8m0fnu")
NAN = 255  # the code
BIAS = 127
Rounding = Literal["up", "down", "nearest"]

_SIGN = np.int32(-(2**31))
_FRACTION = np.int32(2**23 - 1)
_INFINITY = np.int32(0xFF << 23)


def narrow(x: jax.Array, *, saturate: bool = True, rounding: Rounding = "up") -> jax.Array:
    """The power of two at or next to the magnitude of float32 `x`: above it, below it, or the nearest, ties up.

    Larger numbers become the largest power, and smaller ones the smallest. Without `saturate`, both become NaN. These are
    the tables of ONNX's Cast.
    """
    bits = lax.bitcast_convert_type(x, jnp.int32)
    exponent, fraction = bits >> 23 & 0xFF, bits & _FRACTION
    half = np.int32(2**22)
    tiny = exponent == 0  # half of these numbers is 2**-127, the smallest result
    rounded_up = {
        "up": fraction > jnp.where(tiny, half, 0),
        "down": jnp.zeros_like(tiny),
        "nearest": fraction >= jnp.where(tiny, half + half // 2, half),
    }[rounding]
    code = exponent + rounded_up.astype(jnp.int32)
    code = jnp.minimum(code, NAN - 1) if saturate else jnp.where(tiny & (fraction < half), NAN, code)
    return of_code(jnp.where(bits & ~_SIGN > _INFINITY, NAN, code))


def of_code(code: jax.Array) -> jax.Array:
    """The numbers with biased exponents from 0 to 254, or `NAN`."""
    return lax.bitcast_convert_type(code.astype(jnp.uint8), DTYPE)


def code_of(x: jax.Array) -> jax.Array:
    """The biased exponent of each number, in int32."""
    return lax.bitcast_convert_type(x, jnp.uint8).astype(jnp.int32)


def widen(x: jax.Array) -> jax.Array:
    """The float32 of each number. 2**-127 is subnormal."""
    code = code_of(x)
    bits = lax.select(code == 0, jnp.full_like(code, 2**22), code << 23)
    return lax.bitcast_convert_type(lax.select(code == NAN, bits + np.int32(2**22), bits), jnp.float32)


def product(x: jax.Array, scale: jax.Array) -> jax.Array:
    """``fl(x * scale)`` of float32 `x`."""
    code = code_of(scale)
    return _unless_nan(code, ldexp(x, code - BIAS))


def quotient(x: jax.Array, scale: jax.Array) -> jax.Array:
    """``fl(x / scale)`` of float32 `x`."""
    code = code_of(scale)
    return _unless_nan(code, ldexp(x, BIAS - code))


def _unless_nan(code: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(code == NAN, np.float32(np.nan), x)


def ldexp(x: jax.Array, exponent: jax.Array) -> jax.Array:
    """``fl(x * 2**exponent)`` of float32 `x`, subnormal numbers included, for exponents from -300 to 300."""
    x, exponent = jnp.broadcast_arrays(x, exponent)
    bits = lax.bitcast_convert_type(x, jnp.int32)
    magnitude = bits & ~_SIGN
    # The bits of a subnormal number are an integer, whose float32 is normal and 2**149 times as large.
    tiny = magnitude < np.int32(2**23)
    normal = lax.bitcast_convert_type(magnitude.astype(jnp.float32), jnp.int32)
    normal = lax.select(tiny, normal - np.int32(149 << 23), magnitude)
    significand, biased = (normal & _FRACTION) | np.int32(2**23), (normal >> 23) + exponent
    # For a subnormal result, a shift by 25 leaves nothing of 24 bits.
    shift = lax.clamp(np.int32(0), 1 - biased, np.int32(25))
    kept = lax.shift_right_logical(significand, shift)
    half_or_less = lax.max((lax.shift_left(jnp.ones_like(shift), shift) >> 1) - 1 + (kept & 1), jnp.zeros_like(shift))
    rounded = lax.shift_right_logical(significand + half_or_less, shift)
    # Added, not or-ed: the hidden bit, and a carry out of the fraction, go to the exponent.
    result = rounded + (lax.max(biased - 1, jnp.zeros_like(biased)) << 23)
    result = lax.select(biased >= 0xFF, jnp.full_like(result, _INFINITY), result)
    result = lax.select((magnitude == 0) | (magnitude >= _INFINITY), magnitude, result)
    return lax.bitcast_convert_type(result | (bits & _SIGN), jnp.float32)


def scaled_integer(magnitude: jax.Array, exponent: jax.Array) -> jax.Array:
    """``magnitude * 2**exponent``, for integers from 0 to 2**23, if it is a float32 or larger than all of them."""
    bits = lax.bitcast_convert_type(magnitude.astype(jnp.float32), jnp.int32)
    biased = (bits >> 23) + exponent
    subnormal = lax.shift_left(magnitude, lax.clamp(np.int32(0), exponent + np.int32(149), np.int32(23)))
    result = lax.select(biased > 0, bits + (exponent << 23), subnormal)
    result = lax.select(biased >= 0xFF, jnp.full_like(result, _INFINITY), result)
    return lax.bitcast_convert_type(lax.select(magnitude == 0, magnitude, result), jnp.float32)
