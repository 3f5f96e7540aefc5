"""Conversions from one element type to another."""

import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax

from jquant.onnx.errors import ModelError
from jquant.onnx.registry import converter
from jquant.onnx.values import jax_dtype, to_jax

_SATURATING = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_EXPONENTS = "float8_e8m0fnu"


@converter("Cast", since=6)
def cast(x, *, to, saturate=1, round_mode="up", xp):
    """Floats to integers towards zero; to those of 4 and 2 bits, and between integers, without the higher bits.

    Float types of 8 bits take what is out of range as their largest number, infinities as well, or with ``saturate=0``
    as NaN (E5M2: as infinity). The exponents of E8M0 take 0 as the smallest.
    """
    return _cast(x, onnx.helper.tensor_dtype_to_np_dtype(to), saturate, round_mode, xp)


@converter("CastLike", since=15)
def cast_like(x, target_type, *, saturate=1, round_mode="up", xp):
    dtype = np.dtype(np.int64) if target_type.dtype == object else target_type.dtype
    return _cast(x, dtype, saturate, round_mode, xp)


def _cast(x, dtype: np.dtype, saturate: int, round_mode: str, xp):
    if xp is np:
        if x.dtype != object:
            return _converted(x, dtype, saturate, round_mode)
        if dtype.kind in "iu":  # sizes remain those that they are
            return x
    return _converted(to_jax(x, "the operand"), jax_dtype(dtype, "the result"), saturate, round_mode)


@converter("BitCast", since=26)
def bit_cast(x, *, to):
    """The same bits as another type of the same width."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
    if dtype.itemsize == 8 and jax_dtype(dtype, "the result").itemsize != 8:
        raise ModelError("integers of 64 bits are 32 outside of JAX's 64-bit mode: they have no bits to cast")
    return x.astype(jnp.uint8).astype(dtype) if x.dtype == bool else lax.bitcast_convert_type(x, dtype)


def _converted(x, dtype: np.dtype, saturate: int, round_mode: str):
    """`x`, of NumPy or JAX, in another type."""
    if dtype.kind == "b":
        return x != 0
    if dtype.name == _EXPONENTS:
        return _exponents(jnp.asarray(x, jnp.float32), saturate, round_mode)
    if dtype.name in _SATURATING and saturate:
        largest = float(jnp.finfo(dtype).max)
        return x.clip(-largest, largest).astype(dtype)
    if dtype.name in ("int4", "uint4", "int2", "uint2"):
        return x.astype(np.int32).astype(dtype)
    return x.astype(dtype)


def _exponents(x, saturate: int, round_mode: str):
    """Powers of two, without a sign, from 2**-127 on; the bits of 255 are NaN."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    exponent, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    half = jnp.uint32(0x400000)
    tiny = exponent == 0  # and of these, half is 2**-127, the smallest result
    smaller = tiny & (fraction < half)
    rounded_up = {
        "up": jnp.where(tiny, fraction > half, fraction > 0),
        "down": jnp.zeros(x.shape, bool),
        "nearest": jnp.where(tiny, fraction >= half + half // 2, fraction >= half),
    }[round_mode]
    found = exponent + rounded_up.astype(jnp.uint32)
    found = jnp.minimum(found, 254) if saturate else jnp.where(smaller, 255, found)
    found = jnp.where(jnp.isnan(x), 255, found).astype(jnp.uint8)
    return lax.bitcast_convert_type(found, jnp.float8_e8m0fnu)
