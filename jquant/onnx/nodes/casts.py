"""Conversions between element types: Cast, CastLike and BitCast."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from jquant.arithmetic import e8m0, exact
from jquant.arithmetic.narrow_floats import has_infinities_or_nan, is_narrow_float, narrow
from jquant.errors import ModelError
from jquant.lowering.bitcast import bitcast
from jquant.onnx.graphs.values import jax_dtype, to_jax
from jquant.onnx.running.registry import converter


@converter("Cast", since=6)
def cast(x, *, to, saturate=1, round_mode="up", xp):
    """Truncates floats to integers. Casts to 4- and 2-bit integers, and between integers, drop the higher bits.

    In 8-bit float types, values out of range, infinities included, saturate to the largest number; with ``saturate=0``, they
    become NaN (in E5M2, infinity). The 4-bit float type always saturates, and turns NaN into a zero of the opposite sign. In
    E8M0, which holds exponents alone, 0 becomes the smallest number.
    """
    return _cast(x, onnx.helper.tensor_dtype_to_np_dtype(to), saturate, round_mode, xp)


@converter("CastLike", since=15)
def cast_like(x, target_type, *, saturate=1, round_mode="up", xp):
    dtype = np.dtype(np.int64) if target_type.dtype == object else target_type.dtype
    return _cast(x, dtype, saturate, round_mode, xp)


def _cast(x, dtype: np.dtype, saturate: int, round_mode: str, xp):
    if xp is np:
        if x.dtype != object:
            return _convert(x, dtype, saturate, round_mode, np)
        if dtype.kind in "iu":  # symbolic sizes stay as they are
            return x
    return _convert(to_jax(x, "the operand"), jax_dtype(dtype, "the result"), saturate, round_mode, jnp)


@converter("BitCast", since=26)
def bit_cast(x, *, to):
    """The same bits as another type of the same width."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
    if dtype.itemsize == 8 and jax_dtype(dtype, "the result").itemsize != 8:
        raise ModelError("64-bit integers become 32-bit outside JAX's 64-bit mode, so their bits cannot be cast")
    return x.astype(jnp.uint8).astype(dtype) if x.dtype == bool else bitcast(x, dtype)


def _convert(x, dtype: np.dtype, saturate: int, round_mode: str, xp):
    """A NumPy or JAX array in another dtype."""
    if dtype.kind == "b":
        return x != 0
    if is_narrow_float(dtype) or dtype == e8m0.DTYPE:
        return _convert_to_narrow_float(x, dtype, bool(saturate), round_mode, xp)
    if x.dtype == e8m0.DTYPE:
        x = _apply(e8m0.widen, x, xp)
    if dtype.name in ("int4", "uint4", "int2", "uint2"):
        return x.astype(np.int32).astype(dtype)
    return x.astype(dtype)


def _convert_to_narrow_float(x, dtype: np.dtype, saturate: bool, round_mode: Any, xp):
    """An array in an 8- or 4-bit float type, rounded once."""
    single = _apply(e8m0.widen, x, xp) if x.dtype == e8m0.DTYPE else _as_float32(x, xp)
    if dtype == e8m0.DTYPE:
        return _apply(functools.partial(e8m0.narrow, saturate=saturate, rounding=round_mode), single, xp)
    if not has_infinities_or_nan(dtype):  # the type's specification turns NaN into 6, but ONNX's node tests into a zero
        single = xp.where(xp.isnan(single), xp.copysign(np.float32(0), -single), single)
    return _apply(lambda x: narrow(exact.seal(x), dtype, saturate=saturate), single, xp)


def _as_float32(x, xp):
    """A float32 that rounds to the same 8- or 4-bit number as the original value."""
    if x.dtype.kind in "iu" and x.dtype.itemsize >= 4:  # integers of more than 24 bits exceed all of these numbers
        x = x.clip(0 if x.dtype.kind == "u" else -(2**24), 2**24)
    if x.dtype != np.float64:
        return x.astype(np.float32)
    # Rounds towards zero, then sets the last bit if that is inexact: the result is on the same side of each tie as `x`, and
    # is a tie only if `x` is.
    with np.errstate(over="ignore"):
        nearest = x.astype(np.float32) if xp is np else exact.seal(x.astype(np.float32))
    widened, bits = nearest.astype(np.float64), nearest.view(np.int32)
    bits = bits - (abs(widened) > abs(x)).astype(np.int32)
    return xp.where(widened == x, bits, bits | np.int32(1)).view(np.float32)


def _apply(function, x, xp):
    """Applies a function of JAX arrays. The result of a static tensor is static."""
    if xp is not np:
        return function(x)
    with jax.ensure_compile_time_eval():
        return np.asarray(function(jnp.asarray(x)))
