"""8-, 6- and 4-bit floats: conversion from float32 to the nearest number, and back to float32, bit for bit.

Both directions are integer arithmetic on the bits, which leaves compilers no freedom, flushes no subnormal number, and needs
no backend that knows the type: until the last step, a number is its code, in an unsigned integer.

Infinities, NaN and numbers that are too large are treated as in the tables of ONNX's Cast.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import float_bits
from jquant.arithmetic.e8m0 import scaled_integer
from jquant.arithmetic.float_bits import FRACTION, HIDDEN_BIT, INFINITY, MAGNITUDE, NAN, SIGN, from_bits, normalized
from jquant.lowering import materialize
from jquant.lowering.bitcast import bitcast, bitcast_unguarded
from jquant.lowering.recording import recorded


@dataclasses.dataclass(frozen=True)
class NarrowFloat:
    """A type of a sign bit, exponent bits and fraction bits, from the highest to the lowest.

    A code without its sign, of exponent bits e and fraction bits f, stands for
    ``(1 + f / 2**fraction_bits) * 2**(e - bias)``, or if e is 0 for ``f / 2**fraction_bits * 2**(1 - bias)``.

    Attributes:
      bits: of sign, exponent and fraction together.
      fraction_bits: how many of them belong to the fraction.
      bias: of the exponent.
      largest: the code of the largest finite number.
      overflow: the code of larger numbers, without saturation: infinity's or a NaN's. `largest` if there is neither.
      nan: the code of NaN, or of the number that takes its place.
      signed_zero: whether there is a -0, and a NaN of either sign. If not, the code of -0 is the only NaN.
    """

    bits: int
    fraction_bits: int
    bias: int
    largest: int
    overflow: int
    nan: int
    signed_zero: bool = True

    @property
    def saturates(self) -> bool:
        """Whether the type has neither infinities nor NaN, so that larger numbers can only saturate."""
        return self.overflow == self.largest

    @property
    def sign_bit(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def largest_exponent(self) -> int:
        """The exponent of the largest power of two."""
        return (self.largest >> self.fraction_bits) - self.bias


FLOAT8_E4M3FN = NarrowFloat(8, 3, 7, largest=0x7E, overflow=0x7F, nan=0x7F)
FLOAT8_E4M3FNUZ = NarrowFloat(8, 3, 8, largest=0x7F, overflow=0x80, nan=0x80, signed_zero=False)
FLOAT8_E5M2 = NarrowFloat(8, 2, 15, largest=0x7B, overflow=0x7C, nan=0x7E)
FLOAT8_E5M2FNUZ = NarrowFloat(8, 2, 16, largest=0x7F, overflow=0x80, nan=0x80, signed_zero=False)
FLOAT6_E2M3FN = NarrowFloat(6, 3, 1, largest=0x1F, overflow=0x1F, nan=0x1F)
FLOAT6_E3M2FN = NarrowFloat(6, 2, 3, largest=0x1F, overflow=0x1F, nan=0x1F)
FLOAT4_E2M1FN = NarrowFloat(4, 1, 1, largest=0x7, overflow=0x7, nan=0x7)

_FORMATS = {
    jnp.dtype("float8_e4m3fn"): FLOAT8_E4M3FN,
    jnp.dtype("float8_e4m3fnuz"): FLOAT8_E4M3FNUZ,
    jnp.dtype("float8_e5m2"): FLOAT8_E5M2,
    jnp.dtype("float8_e5m2fnuz"): FLOAT8_E5M2FNUZ,
    jnp.dtype("float4_e2m1fn"): FLOAT4_E2M1FN,
}

FLOATS_OF_6_BITS = {jnp.dtype("float6_e2m3fn"): FLOAT6_E2M3FN, jnp.dtype("float6_e3m2fn"): FLOAT6_E3M2FN}
"""By dtype. JAX arrays cannot have these types on a CPU: there, only their codes exist."""


def is_narrow_float(dtype: np.dtype) -> bool:
    """Whether `dtype` is a narrow float that JAX arrays can have. (The 6-bit ones are not: XLA does not convert them.)"""
    return dtype in _FORMATS


def has_infinities_or_nan(dtype: np.dtype) -> bool:
    """Whether `dtype` is such a narrow float, and has infinities or NaN."""
    return dtype in _FORMATS and not _FORMATS[dtype].saturates


def format_of(dtype: np.dtype) -> NarrowFloat:
    """The format of a dtype that JAX arrays can have."""
    return _FORMATS[dtype]


@recorded("narrow_floats.narrow", static=("dtype", "saturate"), elementwise=True)
def narrow(x: jax.Array, dtype: np.dtype, *, saturate: bool = True) -> jax.Array:
    """A sealed float32 `x`, rounded to a narrow `dtype`, ties to the even code; see `encode`."""
    return from_code(encode(x, _FORMATS[dtype], saturate=saturate), dtype)


@recorded("narrow_floats.from_code", static=("dtype",), elementwise=True)
def from_code(code: jax.Array, dtype: np.dtype) -> jax.Array:
    """The numbers of a narrow `dtype`, from their codes in uint8 as `encode` makes them."""
    return bitcast_unguarded(code.astype(_unsigned(dtype)), dtype)


@recorded("narrow_floats.widen", elementwise=True)
def widen(x: jax.Array, *, exponent: jax.Array | None = None) -> jax.Array:
    """The float32 of each number of a narrow dtype, which is exact; see `decode`."""
    code = bitcast(x, _unsigned(x.dtype))
    return decode(code.astype(jnp.uint8), _FORMATS[jnp.dtype(x.dtype)], exponent=exponent)


def _unsigned(dtype: np.dtype) -> np.dtype:
    return jnp.dtype(f"uint{_FORMATS[jnp.dtype(dtype)].bits}")


def encode(x: jax.Array, target: NarrowFloat, *, saturate: bool = True, exponent: jax.Array | None = None) -> jax.Array:
    """The codes, in uint8, of float32 `x` rounded to the type `target`: ties to the even code, subnormal numbers included.

    `x` is sealed, or was computed from bits. With `exponent`, int32 from -127 to 128, ``x / 2**exponent`` is rounded, which
    need not be a float32.

    Infinities, and what rounds to more than the largest number, become the largest number of their sign. Without
    `saturate`, they become infinite or, in a type that has no infinities, NaN. NaN stays NaN, with its sign if the type
    has signed NaN. A type without NaN always saturates, and NaN becomes its largest positive number.
    """
    bits = bitcast_unguarded(x, jnp.int32)
    magnitude = bits & MAGNITUDE
    is_nan = magnitude > INFINITY
    biased, significand = (magnitude >> 23, magnitude) if exponent is None else _scaled_down(magnitude, exponent)
    smallest_normal = np.int32(127 + 1 - target.bias)
    # In a subnormal result, the hidden bit is part of the fraction; a shift by 25 leaves nothing of 24 bits.
    significand = (significand & FRACTION) | HIDDEN_BIT
    below = lax.max(smallest_normal - biased, jnp.zeros_like(biased))
    shift = lax.min(below + np.int32(23 - target.fraction_bits), jnp.full_like(below, 25))
    one = jnp.ones_like(shift)
    half_or_less = lax.shift_left(one, shift - 1) - 1 + (lax.shift_right_logical(significand, shift) & 1)
    rounded = lax.shift_right_logical(significand + half_or_less, shift)
    # Added, not or-ed: the hidden bit, and a carry out of the fraction, go to the exponent.
    code = rounded + (lax.max(biased - smallest_normal, jnp.zeros_like(biased)) << target.fraction_bits)
    beyond = target.largest if saturate else target.overflow
    code = lax.select(code > target.largest, jnp.full_like(code, beyond), code)
    code = lax.select(is_nan, jnp.full_like(code, target.nan), code)
    sign = lax.select(bits < 0, jnp.full_like(bits, target.sign_bit), jnp.zeros_like(bits))
    if target.saturates:
        sign = lax.select(is_nan, jnp.zeros_like(sign), sign)
    if not target.signed_zero:
        sign = lax.select(code == 0, jnp.zeros_like(sign), sign)
    return materialize.shared((code | sign).astype(jnp.uint8))


def _scaled_down(magnitude: jax.Array, exponent: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The biased exponent of ``x / 2**exponent``, from the bits of `x` without its sign, and bits with its fraction."""
    normal = normalized(magnitude)
    biased = (normal >> 23) - exponent
    return lax.select(magnitude == INFINITY, jnp.full_like(biased, 0xFF), biased), normal


@recorded("narrow_floats.decode", static=("source",), elementwise=True)
def decode(code: jax.Array, source: NarrowFloat, *, exponent: jax.Array | None = None) -> jax.Array:
    """The float32 of each number of the type `source`, from its code in uint8.

    With `exponent`, int32 from -127 to 127, ``x * 2**exponent`` of each number `x`, which is exact or infinite.
    """
    number = code.astype(jnp.int32)
    magnitude = number & np.int32(source.sign_bit - 1)
    biased = magnitude >> source.fraction_bits
    fraction = magnitude & np.int32(2**source.fraction_bits - 1)
    significand = fraction | lax.select(biased > 0, jnp.full_like(fraction, 2**source.fraction_bits), fraction)
    scaling = lax.max(biased, jnp.ones_like(biased)) - np.int32(source.bias + source.fraction_bits)
    if exponent is None:
        # An integer of so few bits is a float32, to whose exponent the power of two is added.
        bits = float_bits.bits(significand.astype(jnp.float32)) + (scaling << 23)
        bits = lax.select(significand == 0, jnp.zeros_like(bits), bits)
    else:
        bits = float_bits.bits(scaled_integer(significand, scaling + exponent))
    sign = lax.select((number & source.sign_bit) > 0, jnp.full_like(bits, SIGN), jnp.zeros_like(bits))
    if not source.signed_zero:
        bits = lax.select(number == source.nan, jnp.full_like(bits, NAN), bits)
    elif not source.saturates:
        special = jnp.full_like(bits, INFINITY if source.overflow != source.nan else NAN)
        special = lax.select(magnitude > source.overflow, jnp.full_like(bits, NAN), special)
        bits = lax.select(magnitude > source.largest, special, bits)
    return from_bits(bits | sign)
