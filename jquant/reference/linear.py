"""The operators of DirectML and ONNX."""

import numpy as np
from jax.numpy import iinfo
from numpy import float32
from numpy.typing import ArrayLike

from jquant.reference import rounding
from jquant.reference.narrow_floats import is_narrow, narrow, widen


def dequantize_linear(x, scale, zero_point: ArrayLike = 0, *, axis=None, block_size=None, dtype=None):
    """``(x - zero_point) * scale``: the difference in 64 bits for integers, in float32 for narrow floats."""
    x = np.asarray(x)
    its_zero_point = of_each(zero_point, x, axis, block_size)
    scale = of_each(scale, x, axis, block_size)
    with np.errstate(all="ignore"):
        if is_narrow(x.dtype):
            offset = widen(x) - (widen(its_zero_point) if its_zero_point.dtype == x.dtype else float32(0))
        else:
            offset = x.astype(np.int64) - its_zero_point.astype(np.int64)
        return (offset.astype(float32) * scale.astype(float32)).astype(scale.dtype if dtype is None else dtype)


def quantize_linear(x, scale, zero_point, dtype, *, axis=None, block_size=None, saturate=True, precision=float32):
    """``sat(rne(x / scale) + zero_point)``, NaN -> 0; for narrow floats the nearest to ``x / scale + zero_point``.

    The operands of the quotient are rounded to `precision` by way of float32, and so is the quotient.
    """
    scale, zero_point = (of_each(tensor, x, axis, block_size) for tensor in (scale, zero_point))
    with np.errstate(all="ignore"):
        dividend, divisor = (np.asarray(each).astype(float32).astype(precision).astype(float32) for each in (x, scale))
        quotient = (dividend / divisor).astype(precision).astype(float32)
        if is_narrow(dtype):
            zero_point = np.asarray(zero_point).astype(float32)
            return narrow(np.where(zero_point == 0, quotient, quotient + zero_point), dtype, saturate=saturate)
    return rounding.saturate(np.rint(quotient).astype(np.float64) + np.asarray(zero_point).astype(np.float64), dtype)


def of_each(tensor, x, axis, block_size):
    """A scale or zero point in a shape that broadcasts to that of `x`: for each slice along the axis, that of its block."""
    tensor = np.asarray(tensor)
    if axis is None or tensor.ndim == 0:
        return tensor
    if block_size is None:
        return tensor.reshape([-1 if dimension == axis else 1 for dimension in range(x.ndim)])
    return tensor.take(np.arange(x.shape[axis]) // block_size, axis)


def dynamic_quantize_linear(x, where=True, dtype=np.uint8, *, axis=None, symmetric=False):
    """Output, scale and zero point. The range is that of the values that count and 0, over all or along `axis`."""
    if axis is not None or symmetric:
        return _dynamic_rows(x, where, dtype, axis, symmetric)
    with np.errstate(all="ignore"):
        x, limits = np.asarray(x).astype(float32), iinfo(dtype)
        low, high = x.min(initial=0, where=where), x.max(initial=0, where=where)
        scale = float32(1) if high == low else (high - low) / float32(limits.max - limits.min)
        zero_point = rounding.saturate(np.rint(float32(limits.min) - low / scale), dtype)
    return quantize_linear(x, scale, zero_point, dtype), scale, zero_point


def _dynamic_rows(x, where, dtype, axis, symmetric):
    """The same along `axis`, which keeps a size of 1, or over all; a scale below the normal numbers becomes 1."""
    with np.errstate(all="ignore"):
        x, limits = np.asarray(x).astype(float32), iinfo(dtype)
        counted = np.where(where, x, float32(0))
        low, high = (end(counted, axis, keepdims=axis is not None, initial=0) for end in (np.min, np.max))
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
    """Scale and zero point; for a range that is empty, or nearly, 1 and 0."""
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


def pack_integers(x):
    """Packs the first integer of each byte into its lowest bits; zeros fill each row's last byte."""
    x = np.asarray(x)
    bits = iinfo(x.dtype).bits
    count = 8 // bits
    unsigned = x.astype(np.int64) % 2**bits
    padded = np.concatenate([unsigned, np.zeros((*x.shape[:-1], -x.shape[-1] % count), np.int64)], axis=-1)
    return np.sum([padded[..., place::count] * 2 ** (bits * place) for place in range(count)], axis=0).astype(np.uint8)


def unpack_integers(packed, dtype, size):
    """The inverse."""
    bits = iinfo(dtype).bits
    places = np.arange(size)
    unsigned = packed[..., places * bits // 8].astype(np.int64) // 2 ** (places * bits % 8) % 2**bits
    return np.where(unsigned > iinfo(dtype).max, unsigned - 2**bits, unsigned).astype(dtype)


def quantized_linear_add(a, a_scale, a_zero_point, b, b_scale, b_zero_point, output_scale, output_zero_point, dtype):
    with np.errstate(all="ignore"):
        value = dequantize_linear(a, a_scale, a_zero_point) + dequantize_linear(b, b_scale, b_zero_point)
    return quantize_linear(value, output_scale, output_zero_point, dtype)


def quantized_linear_multiply(a, a_scale, a_zero_point, b, b_scale, b_zero_point, output_scale, output_zero_point, dtype):
    """``sat(rne(fl(fl(p * fl(a_scale * b_scale)) / output_scale)) + output_zero_point)``, p the integer product."""
    a, b = (
        np.asarray(x).astype(np.int64) - np.asarray(z).astype(np.int64) for x, z in ((a, a_zero_point), (b, b_zero_point))
    )
    with np.errstate(all="ignore"):
        value = (a * b).astype(float32) * (np.asarray(a_scale, float32) * np.asarray(b_scale, float32))
    return quantize_linear(value, output_scale, output_zero_point, dtype)


def quantized_linear_leaky_relu(x, scale, zero_point, output_scale, output_zero_point, alpha, dtype):
    value = dequantize_linear(x, scale, zero_point)
    with np.errstate(all="ignore"):
        value = np.where(value < 0, float32(alpha) * value, value)
    return quantize_linear(value, output_scale, output_zero_point, dtype)


def quantized_linear_concat(inputs, output_scale, output_zero_point, axis, dtype):
    values = [dequantize_linear(*operands) for operands in inputs]
    return np.concatenate([quantize_linear(value, output_scale, output_zero_point, dtype) for value in values], axis)


def matmul_integer(a, b, a_zero_point: ArrayLike = 0, b_zero_point: ArrayLike = 0):
    """With zero points in a shape that broadcasts; modulo 2**32."""
    a, b = (
        np.asarray(x).astype(np.int64) - np.asarray(z).astype(np.int64) for x, z in ((a, a_zero_point), (b, b_zero_point))
    )
    return (a @ b).astype(np.int32)


def matmul_integer_to_float(a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias=None, dtype=float32):
    """``fl(fl(acc) * fl(a_scale * b_scale)) + bias``; scales and zero points in a shape that broadcasts."""
    with np.errstate(all="ignore"):
        scale = np.asarray(a_scale).astype(float32) * np.asarray(b_scale).astype(float32)
        value = matmul_integer(a, b, a_zero_point, b_zero_point).astype(float32) * scale
        if bias is not None:
            value = value + np.asarray(bias).astype(float32)
        return value.astype(dtype)


def dot_general(lhs, rhs, dimension_numbers, dtype=float32, *, lhs_per_tensor=False, rhs_per_tensor=False):
    """``fl(fl(sum of integers) * fl(lhs_scale * rhs_scale))``, with a number for each dimension, as in `np.einsum`."""
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = dimension_numbers
    of_lhs, of_rhs = list(range(lhs.ndim)), list(range(lhs.ndim, lhs.ndim + rhs.ndim))
    for one, other in (*zip(lhs_contracting, rhs_contracting, strict=True), *zip(lhs_batch, rhs_batch, strict=True)):
        of_rhs[other] = one
    rows = [one for one in of_lhs if one not in (*lhs_contracting, *lhs_batch)]
    output = [*lhs_batch, *rows, *(one for one in of_rhs if one not in of_lhs)]
    a, a_scale = _symmetric_int8(lhs, lhs_contracting, lhs_per_tensor)
    b, b_scale = _symmetric_int8(rhs, rhs_contracting, rhs_per_tensor)
    with np.errstate(all="ignore"):
        scale = np.einsum(a_scale, of_lhs, b_scale, of_rhs, output)  # a single product each
        product = np.einsum(a.astype(np.int64), of_lhs, b.astype(np.int64), of_rhs, output).astype(np.int32)
        return (product.astype(float32) * scale).astype(dtype)


def _symmetric_int8(x, contracting, per_tensor):
    """Integers, and scales with a size of 1 for each contracted dimension."""
    sizes = tuple(1 if dimension in contracting else size for dimension, size in enumerate(x.shape))
    largest = abs(x.astype(float32)).max(None if per_tensor else tuple(contracting), keepdims=True, initial=0)
    scale, _ = scale_and_zero_point(-largest, largest, np.int8, symmetric=True, narrow_range=True)
    return quantize_linear(x, scale, 0, np.int8), np.broadcast_to(scale, sizes)


def quantized_linear_matmul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, output_scale, output_zero_point, dtype):
    product = matmul_integer(a, b, a_zero_point, b_zero_point)
    return requantize_product(product, a_scale, b_scale, output_scale, output_zero_point, dtype)


def quantized_gemm(a, a_scale, a_zero_point, b, b_scale, b_zero_point, c, output_scale, output_zero_point, dtype):
    """The product and `c` modulo 2**32."""
    total = matmul_integer(a, b, a_zero_point, b_zero_point) + np.asarray(0 if c is None else c, np.int32)
    return requantize_product(total, a_scale, b_scale, output_scale, output_zero_point, dtype)


def requantize_product(product, a_scale, b_scale, output_scale, output_zero_point, dtype):
    """``sat(rne(fl(product) * fl(fl(a_scale * b_scale) / output_scale)) + output_zero_point)``"""
    with np.errstate(all="ignore"):
        a_scale, b_scale, output_scale = (np.asarray(scale).astype(float32) for scale in (a_scale, b_scale, output_scale))
        multiplier = a_scale * b_scale / output_scale
        value = product.astype(float32) * multiplier
    return rounding.saturate(np.rint(value).astype(np.float64) + np.asarray(output_zero_point).astype(np.float64), dtype)


def clip(x, low=-np.inf, high=np.inf, scale_bias=None):
    """``max(Min, min(g(x), Max))``, FLOAT bounds."""
    low, high = typed_bounds(low, high, np.asarray(x).dtype)
    return clip1(x, low, high, scale_bias)


def clip1(x, low, high, scale_bias=None):
    """``max(Min, min(g(x), Max))``, bounds of the type of `x`."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        if scale_bias is not None:
            scale, bias = map(float32, scale_bias)
            x = ((x.astype(float32) * scale) + bias).astype(x.dtype)
        return np.maximum(np.asarray(low).astype(x.dtype), np.minimum(x, np.asarray(high).astype(x.dtype)))


def clip_gradient(x, gradient, low, high):
    """0 where ``x <= Min`` or ``x >= Max``, FLOAT bounds."""
    return clip_gradient1(x, gradient, *typed_bounds(low, high, np.asarray(x).dtype))


def clip_gradient1(x, gradient, low, high):
    """0 where ``x <= Min`` or ``x >= Max``, bounds of the type of `x`."""
    x = np.asarray(x)
    with np.errstate(invalid="ignore"):
        at_a_bound = (x <= np.asarray(low).astype(x.dtype)) | (x >= np.asarray(high).astype(x.dtype))
    return np.where(at_a_bound, np.zeros((), x.dtype), gradient)


def typed_bounds(low, high, dtype):
    """FLOAT bounds in the type of a tensor: integers are truncated toward zero, and saturate."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.issubdtype(dtype, np.integer):
            return tuple(rounding.saturate(np.trunc(float32(bound)), dtype) for bound in (low, high))
        return float32(low).astype(dtype), float32(high).astype(dtype)
