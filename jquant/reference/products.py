"""The integer matrix products of DirectML and ONNX, and `dot_general`."""

import numpy as np
from numpy import float32
from numpy.typing import ArrayLike

from jquant.reference import rounding
from jquant.reference.linear import quantize_linear, scale_and_zero_point


def matmul_integer(a, b, a_zero_point: ArrayLike = 0, b_zero_point: ArrayLike = 0):
    """``(a - a_zero_point) @ (b - b_zero_point)`` modulo 2**32; zero points broadcast."""
    a, b = (
        np.asarray(x).astype(np.int64) - np.asarray(z).astype(np.int64) for x, z in ((a, a_zero_point), (b, b_zero_point))
    )
    return (a @ b).astype(np.int32)


def matmul_integer_to_float(a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias=None, dtype=float32):
    """``fl(fl(acc) * fl(a_scale * b_scale)) + bias``; scales and zero points broadcast."""
    with np.errstate(all="ignore"):
        scale = np.asarray(a_scale).astype(float32) * np.asarray(b_scale).astype(float32)
        value = matmul_integer(a, b, a_zero_point, b_zero_point).astype(float32) * scale
        if bias is not None:
            value = value + np.asarray(bias).astype(float32)
        return value.astype(dtype)


def dot_general(lhs, rhs, dimension_numbers, dtype=float32, *, lhs_per_tensor=False, rhs_per_tensor=False):
    """``fl(fl(acc) * fl(lhs_scale * rhs_scale))`` of symmetric int8; `np.einsum` needs a label for each dimension."""
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = dimension_numbers
    lhs_labels, rhs_labels = list(range(lhs.ndim)), list(range(lhs.ndim, lhs.ndim + rhs.ndim))
    pairs = *zip(lhs_contracting, rhs_contracting, strict=True), *zip(lhs_batch, rhs_batch, strict=True)
    for lhs_dimension, rhs_dimension in pairs:
        rhs_labels[rhs_dimension] = lhs_dimension
    rows = [label for label in lhs_labels if label not in (*lhs_contracting, *lhs_batch)]
    output = [*lhs_batch, *rows, *(label for label in rhs_labels if label not in lhs_labels)]
    a, a_scale = _symmetric_int8(lhs, lhs_contracting, lhs_per_tensor)
    b, b_scale = _symmetric_int8(rhs, rhs_contracting, rhs_per_tensor)
    with np.errstate(all="ignore"):
        scale = np.einsum(a_scale, lhs_labels, b_scale, rhs_labels, output)  # each element is a single product
        product = np.einsum(a.astype(np.int64), lhs_labels, b.astype(np.int64), rhs_labels, output).astype(np.int32)
        return (product.astype(float32) * scale).astype(dtype)


def _symmetric_int8(x, contracting, per_tensor):
    """Integers, and scales whose contracted dimensions have size 1."""
    sizes = tuple(1 if dimension in contracting else size for dimension, size in enumerate(x.shape))
    largest = abs(x.astype(float32)).max(None if per_tensor else tuple(contracting), keepdims=True, initial=0)
    scale, _ = scale_and_zero_point(-largest, largest, np.int8, symmetric=True, narrow_range=True)
    return quantize_linear(x, scale, 0, np.int8), np.broadcast_to(scale, sizes)


def quantized_linear_matmul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, output_scale, output_zero_point, dtype):
    product = matmul_integer(a, b, a_zero_point, b_zero_point)
    return requantize_product(product, a_scale, b_scale, output_scale, output_zero_point, dtype)


def quantized_gemm(a, a_scale, a_zero_point, b, b_scale, b_zero_point, c, output_scale, output_zero_point, dtype):
    """Requantizes the product plus `c`, modulo 2**32."""
    total = matmul_integer(a, b, a_zero_point, b_zero_point) + np.asarray(0 if c is None else c, np.int32)
    return requantize_product(total, a_scale, b_scale, output_scale, output_zero_point, dtype)


def requantize_product(product, a_scale, b_scale, output_scale, output_zero_point, dtype):
    """``sat(rne(fl(product) * fl(fl(a_scale * b_scale) / output_scale)) + output_zero_point)``"""
    with np.errstate(all="ignore"):
        a_scale, b_scale, output_scale = (np.asarray(scale).astype(float32) for scale in (a_scale, b_scale, output_scale))
        multiplier = a_scale * b_scale / output_scale
        value = product.astype(float32) * multiplier
    return rounding.saturate(np.rint(value).astype(np.float64) + np.asarray(output_zero_point).astype(np.float64), dtype)
