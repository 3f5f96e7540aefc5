"""Quantization and dequantization of DirectML and ONNX, and the choice of scales and zero points."""

import numpy as np
from jax.numpy import iinfo
from numpy import float32
from numpy.typing import ArrayLike

from jquant.reference import rounding
from jquant.reference.narrow_floats import is_narrow, narrow, widen


def dequantize_linear(x, scale, zero_point: ArrayLike = 0, *, axis=None, block_size=None, dtype=None):
    """``(x - zero_point) * scale``: the difference in 64 bits for integers, in float32 for narrow floats."""
    x = np.asarray(x)
    scales, zero_points = (broadcast_parameter(tensor, x, axis, block_size) for tensor in (scale, zero_point))
    with np.errstate(all="ignore"):
        if is_narrow(x.dtype):
            offset = widen(x) - (widen(zero_points) if zero_points.dtype == x.dtype else float32(0))
        else:
            offset = x.astype(np.int64) - zero_points.astype(np.int64)
        return (offset.astype(float32) * scales.astype(float32)).astype(scales.dtype if dtype is None else dtype)


def quantize_linear(x, scale, zero_point, dtype, *, axis=None, block_size=None, saturate=True, precision=float32):
    """``sat(rne(x / scale) + zero_point)``, NaN -> 0; for narrow floats, the number nearest to ``x / scale + zero_point``.

    The operands of the quotient are rounded to float32 and then to `precision`, and so is the quotient.
    """
    scale, zero_point = (broadcast_parameter(tensor, x, axis, block_size) for tensor in (scale, zero_point))
    with np.errstate(all="ignore"):
        dividend, divisor = (np.asarray(real).astype(float32).astype(precision).astype(float32) for real in (x, scale))
        quotient = (dividend / divisor).astype(precision).astype(float32)
        if is_narrow(dtype):
            zero_point = np.asarray(zero_point).astype(float32)
            return narrow(np.where(zero_point == 0, quotient, quotient + zero_point), dtype, saturate=saturate)
    return rounding.saturate(np.rint(quotient).astype(np.float64) + np.asarray(zero_point).astype(np.float64), dtype)


def broadcast_parameter(tensor, x, axis, block_size):
    """A scale or zero point in a shape that broadcasts to that of `x`: with blocks, each slice has that of its block."""
    tensor = np.asarray(tensor)
    if axis is None or tensor.ndim == 0:
        return tensor
    if block_size is None:
        return tensor.reshape([-1 if dimension == axis else 1 for dimension in range(x.ndim)])
    return tensor.take(np.arange(x.shape[axis]) // block_size, axis)


def dynamic_quantize_linear(x, where=True, dtype=np.uint8, *, axis=None, symmetric=False):
    """Output, scale and zero point. The range covers 0 and the values where `where` is true, over all or along `axis`."""
    if axis is not None or symmetric:
        return _dynamic_quantize_rows(x, where, dtype, axis, symmetric)
    with np.errstate(all="ignore"):
        x, limits = np.asarray(x).astype(float32), iinfo(dtype)
        low, high = x.min(initial=0, where=where), x.max(initial=0, where=where)
        scale = float32(1) if high == low else (high - low) / float32(limits.max - limits.min)
        zero_point = rounding.saturate(np.rint(float32(limits.min) - low / scale), dtype)
    return quantize_linear(x, scale, zero_point, dtype), scale, zero_point


def _dynamic_quantize_rows(x, where, dtype, axis, symmetric):
    """Along `axis`, whose size becomes 1 in the scale, or over all values. A scale that is 0 or subnormal becomes 1."""
    with np.errstate(all="ignore"):
        x, limits = np.asarray(x).astype(float32), iinfo(dtype)
        counted = np.where(where, x, float32(0))
        low, high = (extreme(counted, axis, keepdims=axis is not None, initial=0) for extreme in (np.min, np.max))
        steps = limits.max - limits.min
        if symmetric:
            scale = np.maximum(abs(low), abs(high)) / float32(steps // 2)
            zero_point = np.where(np.isnan(scale) | (scale < np.finfo(float32).tiny), 0, steps // 2 + limits.min + 1)
        else:
            scale = (high - low) / float32(steps)
            offset = np.rint(float32(limits.min) - low / scale)
            zero_point = np.where(scale < np.finfo(float32).tiny, limits.min, offset)
        scale = np.where(scale < np.finfo(float32).tiny, float32(1), scale)
        zero_point = rounding.saturate(zero_point, dtype)
    return quantize_linear(x, scale, zero_point, dtype), scale, zero_point


def scale_and_zero_point(low, high, dtype, *, symmetric=False, narrow_range=False):
    """Scale and zero point; 1 and 0 for a range so narrow that the scale is 0 or subnormal."""
    limits = iinfo(dtype)
    smallest, largest = limits.min + narrow_range, limits.max
    with np.errstate(all="ignore"):
        low, high = np.minimum(np.asarray(low, float32), float32(0)), np.maximum(np.asarray(high, float32), float32(0))
        if symmetric:
            scale = np.maximum(-low, high) / float32((largest - smallest) / 2)
            zero_point = np.rint(np.where(np.isnan(scale), np.nan, (smallest + largest) / 2))
        else:
            scale = (high - low) / float32(largest - smallest)
            zero_point = np.rint(float32(smallest) - low / scale)
    empty = scale < np.finfo(float32).tiny
    return np.where(empty, float32(1), scale), rounding.saturate(np.where(empty, 0, zero_point), dtype)
