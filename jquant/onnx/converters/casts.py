"""Conversions from one element type to another."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax

from jquant.arithmetic import exact, powers_of_two
from jquant.arithmetic.narrow_floats import has_infinities_or_nan, is_narrow_float, narrow
from jquant.onnx.errors import ModelError
from jquant.onnx.registry import converter
from jquant.onnx.values import jax_dtype, to_jax


@converter("Cast", since=6)
def cast(x, *, to, saturate=1, round_mode="up", xp):
    """Floats to integers towards zero; to those of 4 and 2 bits, and between integers, without the higher bits.

    Float types of 8 bits take what is out of range as their largest number, infinities as well, or with ``saturate=0``
    as NaN (E5M2: as infinity). That of 4 bits always saturates, and makes a zero of the other sign of NaN. The
    exponents of E8M0 take 0 as the smallest.
    """
    return _cast(x, onnx.helper.tensor_dtype_to_np_dtype(to), saturate, round_mode, xp)


@converter("CastLike", since=15)
def cast_like(x, target_type, *, saturate=1, round_mode="up", xp):
    dtype = np.dtype(np.int64) if target_type.dtype == object else target_type.dtype
    return _cast(x, dtype, saturate, round_mode, xp)


def _cast(x, dtype: np.dtype, saturate: int, round_mode: str, xp):
    if xp is np:
        if x.dtype != object:
            return _converted(x, dtype, saturate, round_mode, np)
        if dtype.kind in "iu":  # sizes remain those that they are
            return x
    return _converted(to_jax(x, "the operand"), jax_dtype(dtype, "the result"), saturate, round_mode, jnp)


@converter("BitCast", since=26)
def bit_cast(x, *, to):
    """The same bits as another type of the same width."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
    if dtype.itemsize == 8 and jax_dtype(dtype, "the result").itemsize != 8:
        raise ModelError("integers of 64 bits are 32 outside of JAX's 64-bit mode: they have no bits to cast")
    return x.astype(jnp.uint8).astype(dtype) if x.dtype == bool else lax.bitcast_convert_type(x, dtype)


def _converted(x, dtype: np.dtype, saturate: int, round_mode: str, xp):
    """`x`, of NumPy or JAX, in another type."""
    if dtype.kind == "b":
        return x != 0
    if is_narrow_float(dtype) or dtype == powers_of_two.DTYPE:
        return _narrowed(x, dtype, bool(saturate), round_mode, xp)
    if x.dtype == powers_of_two.DTYPE:
        x = _computed(powers_of_two.widen, x, xp)
    if dtype.name in ("int4", "uint4", "int2", "uint2"):
        return x.astype(np.int32).astype(dtype)
    return x.astype(dtype)


def _narrowed(x, dtype: np.dtype, saturate: bool, round_mode: Any, xp):
    """`x` in a type of 8 or 4 bits, rounded once."""
    single = _computed(powers_of_two.widen, x, xp) if x.dtype == powers_of_two.DTYPE else _single(x, xp)
    if dtype == powers_of_two.DTYPE:
        return _computed(functools.partial(powers_of_two.narrow, saturate=saturate, rounding=round_mode), single, xp)
    if not has_infinities_or_nan(dtype):  # the document of the type makes 6 of NaN, the node cases of Cast do this
        single = xp.where(xp.isnan(single), xp.copysign(np.float32(0), -single), single)
    return _computed(functools.partial(narrow, dtype=dtype, saturate=saturate), single, xp)


def _single(x, xp):
    """A float32 that is rounded to the number of 8 or 4 bits which `x` itself would be rounded to."""
    if x.dtype.kind in "iu" and x.dtype.itemsize >= 4:  # of more than 24 bits, it is larger than any of these numbers
        x = x.clip(0 if x.dtype.kind == "u" else -(2**24), 2**24)
    if x.dtype != np.float64:
        return x.astype(np.float32)
    # Toward zero, with the last bit set if that is not exact: so it is no tie, and on the side of each that `x` is on.
    with np.errstate(over="ignore"):
        nearest = x.astype(np.float32) if xp is np else exact.seal(x.astype(np.float32))
    widened, bits = nearest.astype(np.float64), nearest.view(np.int32)
    bits = bits - (abs(widened) > abs(x)).astype(np.int32)
    return xp.where(widened == x, bits, bits | np.int32(1)).view(np.float32)


def _computed(function, x, xp):
    """Of a static tensor, a static one."""
    if xp is not np:
        return function(x)
    with jax.ensure_compile_time_eval():
        return np.asarray(function(jnp.asarray(x)))
