"""Float types of 8, 6 and 4 bits: the nearest number of each to a float32, and the float32 of each, bit for bit.

Both ways are integer arithmetic on the bits. No compiler has a liberty there, no backend flushes a subnormal number, and
none needs to know the type: a number is its code, in an unsigned integer, until the last step.

What becomes of infinities, of NaN and of what is too large is in the tables of ONNX's Cast.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclasses.dataclass(frozen=True)
class NarrowFloat:
    """A type of a sign bit, exponent bits and fraction bits, from the highest to the lowest.

    A code without its sign, of exponent bits e and fraction bits f, is ``(1 + f / 2**fraction_bits) * 2**(e - bias)``, or
    with e = 0 ``f / 2**fraction_bits * 2**(1 - bias)``.

    Attributes:
      bits: of all three together.
      fraction_bits: how many of them are the fraction's.
      bias: of the exponent.
      largest: the code of the largest finite number.
      overflow: the code of what is larger, where it does not saturate: infinity's or a NaN's. `largest` if there is neither.
      nan: the code of NaN, or that of the number that stands in its place.
      signed_zero: whether there is a -0, and a NaN of either sign. Where not, -0's code is the one NaN.
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
        """Whether it has neither infinities nor NaN, so that there is nothing but to saturate."""
        return self.overflow == self.largest

    @property
    def sign_bit(self) -> int:
        return 1 << (self.bits - 1)


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


def is_narrow_float(dtype: np.dtype) -> bool:
    """Whether arrays of JAX can have this dtype, and it is one of those here. (XLA does not convert those of 6 bits.)"""
    return dtype in _FORMATS


def has_infinities_or_nan(dtype: np.dtype) -> bool:
    """Whether the dtype is one of those here which need not saturate."""
    return dtype in _FORMATS and not _FORMATS[dtype].saturates


def narrow(x: jax.Array, dtype: np.dtype, *, saturate: bool = True) -> jax.Array:
    """The nearest numbers of a narrow `dtype` to float32 `x`, ties to the even code; see `encode`."""
    code = encode(x, _FORMATS[dtype], saturate=saturate)
    return lax.bitcast_convert_type(code.astype(_unsigned(dtype)), dtype)


def widen(x: jax.Array) -> jax.Array:
    """The float32 of each number of a narrow dtype, which is exact."""
    code = lax.bitcast_convert_type(x, _unsigned(x.dtype))
    return decode(code.astype(jnp.uint8), _FORMATS[jnp.dtype(x.dtype)])


def _unsigned(dtype: np.dtype) -> np.dtype:
    return jnp.dtype(f"uint{_FORMATS[jnp.dtype(dtype)].bits}")


def encode(x: jax.Array, target: NarrowFloat, *, saturate: bool = True) -> jax.Array:
    """The codes, in uint8, of the nearest numbers of a type to float32 `x`: ties to the even code, subnormals included.

    What rounds to more than the largest number, and infinities, become the largest number of their sign; without
    `saturate` they become infinite or, in a type that has no infinities, NaN. NaN stays NaN, with its sign if the type
    has one for it. A type without NaN saturates always, and NaN becomes its largest positive number.
    """
    bits = lax.bitcast_convert_type(x, jnp.int32)
    magnitude = bits & np.int32(0x7FFFFFFF)
    is_nan = magnitude > np.int32(0x7F800000)
    exponent = magnitude >> 23
    smallest_normal = np.int32(127 + 1 - target.bias)
    # Of a subnormal result, the hidden bit is among the fraction's; a shift by 25 leaves nothing of 24 bits.
    significand = (magnitude & np.int32(2**23 - 1)) | np.int32(2**23)
    below = lax.max(smallest_normal - exponent, jnp.zeros_like(exponent))
    shift = lax.min(below + np.int32(23 - target.fraction_bits), jnp.full_like(below, 25))
    one = jnp.ones_like(shift)
    half_or_less = lax.shift_left(one, shift - 1) - 1 + (lax.shift_right_logical(significand, shift) & 1)
    rounded = lax.shift_right_logical(significand + half_or_less, shift)
    # Added, not or-ed: the hidden bit, and a carry out of the fraction, go to the exponent.
    code = rounded + (lax.max(exponent - smallest_normal, jnp.zeros_like(exponent)) << target.fraction_bits)
    beyond = target.largest if saturate else target.overflow
    code = lax.select(code > target.largest, jnp.full_like(code, beyond), code)
    code = lax.select(is_nan, jnp.full_like(code, target.nan), code)
    sign = lax.select(bits < 0, jnp.full_like(bits, target.sign_bit), jnp.zeros_like(bits))
    if target.saturates:
        sign = lax.select(is_nan, jnp.zeros_like(sign), sign)
    if not target.signed_zero:
        sign = lax.select(code == 0, jnp.zeros_like(sign), sign)
    return (code | sign).astype(jnp.uint8)


def decode(code: jax.Array, source: NarrowFloat) -> jax.Array:
    """The float32 of each number of a type, from its code in uint8."""
    number = code.astype(jnp.int32)
    magnitude = number & np.int32(source.sign_bit - 1)
    exponent = magnitude >> source.fraction_bits
    fraction = magnitude & np.int32(2**source.fraction_bits - 1)
    significand = fraction | lax.select(exponent > 0, jnp.full_like(fraction, 2**source.fraction_bits), fraction)
    # An integer of so few bits is a float32; what it is to be multiplied by is added to its exponent.
    scaling = lax.max(exponent, jnp.ones_like(exponent)) - np.int32(source.bias + source.fraction_bits)
    bits = lax.bitcast_convert_type(significand.astype(jnp.float32), jnp.int32) + (scaling << 23)
    bits = lax.select(significand == 0, jnp.zeros_like(bits), bits)
    sign = lax.select(number >= source.sign_bit, jnp.full_like(bits, -(2**31)), jnp.zeros_like(bits))
    quiet_nan, infinity = np.int32(0x7FC00000), np.int32(0x7F800000)
    if not source.signed_zero:
        bits = lax.select(number == source.nan, jnp.full_like(bits, quiet_nan), bits)
    elif not source.saturates:
        special = jnp.full_like(bits, infinity if source.overflow != source.nan else quiet_nan)
        special = lax.select(magnitude > source.overflow, jnp.full_like(bits, quiet_nan), special)
        bits = lax.select(magnitude > source.largest, special, bits)
    return lax.bitcast_convert_type(bits | sign, jnp.float32)
