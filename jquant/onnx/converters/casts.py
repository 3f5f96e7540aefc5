"""Conversions from one element type to another."""

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
from jquant.onnx.registry import converter
from jquant.onnx.values import jax_dtype, to_jax


@converter("Cast", since=6)
def cast(x, *, to, saturate=1, round_mode="up", xp):
    """Casts floats to integers towards zero. Casts to 4- and 2-bit integers, and between integers, drop the higher bits.

    8-bit float types saturate out-of-range values, and infinities as well, to their largest number; with ``saturate=0``,
    these become NaN (in E5M2, infinity). The 4-bit float type always saturates, and turns NaN into a zero of the opposite
    sign. The exponents of E8M0 turn 0 into the smallest one.
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
        if dtype.kind in "iu":  # sizes stay as they are
            return x
    return _converted(to_jax(x, "the operand"), jax_dtype(dtype, "the result"), saturate, round_mode, jnp)


@converter("BitCast", since=26)
def bit_cast(x, *, to):
    """The same bits, as another type of the same width."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
    if dtype.itemsize == 8 and jax_dtype(dtype, "the result").itemsize != 8:
        raise ModelError("64-bit integers become 32-bit outside JAX's 64-bit mode, so their bits cannot be cast")
    return x.astype(jnp.uint8).astype(dtype) if x.dtype == bool else bitcast(x, dtype)


def _converted(x, dtype: np.dtype, saturate: int, round_mode: str, xp):
    """`x`, a NumPy or JAX array, in another type."""
    if dtype.kind == "b":
        return x != 0
    if is_narrow_float(dtype) or dtype == e8m0.DTYPE:
        return _narrowed(x, dtype, bool(saturate), round_mode, xp)
    if x.dtype == e8m0.DTYPE:
        x = _computed(e8m0.widen, x, xp)
    if dtype.name in ("int4", "uint4", "int2", "uint2"):
        return x.astype(np.int32).astype(dtype)
    return x.astype(dtype)


def _narrowed(x, dtype: np.dtype, saturate: bool, round_mode: Any, xp):
    """`x` in an 8- or 4-bit float type, rounded once."""
    single = _computed(e8m0.widen, x, xp) if x.dtype == e8m0.DTYPE else _single(x, xp)
    if dtype == e8m0.DTYPE:
        return _computed(functools.partial(e8m0.narrow, saturate=saturate, rounding=round_mode), single, xp)
    if not has_infinities_or_nan(dtype):  # the type's specification turns NaN into 6, ONNX's node tests of Cast into this
        single = xp.where(xp.isnan(single), xp.copysign(np.float32(0), -single), single)
    return _computed(lambda x: narrow(exact.seal(x), dtype, saturate=saturate), single, xp)


def _single(x, xp):
    """A float32 that rounds to the same 8- or 4-bit number as `x` itself."""
    if x.dtype.kind in "iu" and x.dtype.itemsize >= 4:  # beyond 24 bits, it is larger than any of these numbers
        x = x.clip(0 if x.dtype.kind == "u" else -(2**24), 2**24)
    if x.dtype != np.float64:
        return x.astype(np.float32)
    # Toward zero, with the last bit set if inexact: so it is never a tie, and is on the same side of each tie as `x`.
    with np.errstate(over="ignore"):
        nearest = x.astype(np.float32) if xp is np else exact.seal(x.astype(np.float32))
    widened, bits = nearest.astype(np.float64), nearest.view(np.int32)
    bits = bits - (abs(widened) > abs(x)).astype(np.int32)
    return xp.where(widened == x, bits, bits | np.int32(1)).view(np.float32)


def _computed(function, x, xp):
    """Applies `function`. The result of a static tensor is static."""
    if xp is not np:
        return function(x)
    with jax.ensure_compile_time_eval():
        return np.asarray(function(jnp.asarray(x)))
