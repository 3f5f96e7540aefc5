"""E8M0, the type of block scales: powers of two from 2**-127 to 2**127, and NaN; and float32 numbers scaled by them.

A number of the type is its exponent, biased by 127, in 8 bits without a sign; ONNX calls the type FLOAT8E8M0. Everything
here is integer arithmetic on the bits, because the smallest number is a subnormal float32, which backends flush to zero. A
product with a power of two is rounded only if it is subnormal.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import float_bits
from jquant.arithmetic.broadcasting import elementwise
from jquant.arithmetic.float_bits import FRACTION, HIDDEN_BIT, INFINITY, MAGNITUDE, SIGN, from_bits, nan_where, normalized
from jquant.lowering import recording
from jquant.lowering.bitcast import bitcast, bitcast_unguarded
from jquant.lowering.recording import recorded

DTYPE = jnp.dtype("float8_e8m0fnu")
NAN = 255  # its code
BIAS = 127
Rounding = Literal["up", "down", "nearest"]


def narrow(x: jax.Array, *, saturate: bool = True, rounding: Rounding = "up") -> jax.Array:
    """The magnitude of float32 `x` rounded to a power of two: up, down, or to the nearest one, ties up.

    Larger numbers become the largest power, and smaller ones the smallest. Without `saturate`, both become NaN. All of this
    is as in the tables of ONNX's Cast.
    """
    bits = float_bits.bits(x)
    exponent, fraction = bits >> 23 & 0xFF, bits & FRACTION
    half = np.int32(2**22)
    subnormal = exponent == 0  # with a fraction of `half`, 2**-127, which is the smallest result
    rounded_up = {
        "up": fraction > jnp.where(subnormal, half, 0),
        "down": jnp.zeros_like(subnormal),
        "nearest": fraction >= jnp.where(subnormal, half + half // 2, half),
    }[rounding]
    code = exponent + rounded_up.astype(jnp.int32)
    code = jnp.minimum(code, NAN - 1) if saturate else jnp.where(subnormal & (fraction < half), NAN, code)
    return from_code(jnp.where(bits & MAGNITUDE > INFINITY, NAN, code))


@recorded("e8m0.from_code", elementwise=True)
def from_code(code: jax.Array) -> jax.Array:
    """The numbers with these codes, which were computed from bits: biased exponents from 0 to 254, or `NAN`."""
    return bitcast_unguarded(code.astype(jnp.uint8), DTYPE)


@recorded("e8m0.code_of", elementwise=True)
def code_of(x: jax.Array) -> jax.Array:
    """The code of each number, its biased exponent, in int32."""
    return bitcast(x, jnp.uint8).astype(jnp.int32)


@recorded("e8m0.widen", elementwise=True)
def widen(x: jax.Array) -> jax.Array:
    """The float32 of each number; that of 2**-127 is subnormal."""
    code = code_of(x)
    bits = lax.select(code == 0, jnp.full_like(code, 2**22), code << 23)
    return from_bits(lax.select(code == NAN, bits + np.int32(2**22), bits))


def product(x: jax.Array, scale: jax.Array) -> jax.Array:
    """``fl(x * scale)`` of float32 `x`."""
    if recording.is_active():  # a product of floats rounds in the same way
        return elementwise(lax.mul, x, widen(scale))
    code = code_of(scale)
    return nan_where(code == NAN, ldexp(x, code - BIAS))


def quotient(x: jax.Array, scale: jax.Array) -> jax.Array:
    """``fl(x / scale)`` of float32 `x`."""
    if recording.is_active():  # as in `product`
        return elementwise(lax.div, x, widen(scale))
    code = code_of(scale)
    return nan_where(code == NAN, ldexp(x, BIAS - code))


def ldexp(x: jax.Array, exponent: jax.Array) -> jax.Array:
    """``fl(x * 2**exponent)`` of float32 `x`, subnormal numbers included, for exponents from -300 to 300."""
    x, exponent = jnp.broadcast_arrays(x, exponent)
    bits = float_bits.bits(x)
    magnitude = bits & MAGNITUDE
    normal = normalized(magnitude)
    significand, biased = (normal & FRACTION) | HIDDEN_BIT, (normal >> 23) + exponent
    # A subnormal result loses its last bits; a shift by 25 leaves nothing of 24 bits.
    shift = lax.clamp(np.int32(0), 1 - biased, np.int32(25))
    kept = lax.shift_right_logical(significand, shift)
    half_or_less = lax.max((lax.shift_left(jnp.ones_like(shift), shift) >> 1) - 1 + (kept & 1), jnp.zeros_like(shift))
    rounded = lax.shift_right_logical(significand + half_or_less, shift)
    # Added, not or-ed: the hidden bit, and a carry out of the fraction, go to the exponent.
    result = rounded + (lax.max(biased - 1, jnp.zeros_like(biased)) << 23)
    result = lax.select(biased >= 0xFF, jnp.full_like(result, INFINITY), result)
    result = lax.select((magnitude == 0) | (magnitude >= INFINITY), magnitude, result)
    return from_bits(result | (bits & SIGN))


def scaled_integer(magnitude: jax.Array, exponent: jax.Array) -> jax.Array:
    """``magnitude * 2**exponent`` of integers from 0 to 2**23, for results that are a float32 or larger than any."""
    bits = float_bits.bits(magnitude.astype(jnp.float32))
    biased = (bits >> 23) + exponent
    subnormal = lax.shift_left(magnitude, lax.clamp(np.int32(0), exponent + np.int32(149), np.int32(23)))
    result = lax.select(biased > 0, bits + (exponent << 23), subnormal)
    result = lax.select(biased >= 0xFF, jnp.full_like(result, INFINITY), result)
    return from_bits(lax.select(magnitude == 0, magnitude, result))
