"""The operators of DirectML and ONNX."""

import numpy as np
from numpy import float32
from numpy.typing import ArrayLike

from jquant.reference.rounding import saturate


def dequantize_linear(x, scale, zero_point: ArrayLike = 0):
    """``(x - zero_point) * scale``: the difference in 64 bits."""
    offset = np.asarray(x).astype(np.int64) - np.asarray(zero_point).astype(np.int64)
    scale = np.asarray(scale)
    with np.errstate(all="ignore"):
        return (offset.astype(float32) * scale.astype(float32)).astype(scale.dtype)


def quantize_linear(x, scale, zero_point, dtype):
    """``sat(rne(x / scale) + zero_point)``, NaN -> 0."""
    with np.errstate(all="ignore"):
        quotient = np.asarray(x).astype(float32) / np.asarray(scale).astype(float32)
    return saturate(np.rint(quotient).astype(np.float64) + np.asarray(zero_point).astype(np.float64), dtype)


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
    """Zero points in a shape that broadcasts; modulo 2**32."""
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
        multiplier = np.asarray(a_scale, float32) * np.asarray(b_scale, float32) / np.asarray(output_scale, float32)
        value = product.astype(float32) * multiplier
    return saturate(np.rint(value).astype(np.float64) + np.asarray(output_zero_point).astype(np.float64), dtype)


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
    """FLOAT bounds in the type of a tensor: integers toward zero and saturating."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.issubdtype(dtype, np.integer):
            return tuple(saturate(np.trunc(float32(bound)), dtype) for bound in (low, high))
        return float32(low).astype(dtype), float32(high).astype(dtype)
