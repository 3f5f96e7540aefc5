"""ONNX's own quantized operators."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx

from jquant.arithmetic import e8m0, exact, rounding
from jquant.arithmetic.narrow_floats import has_infinities_or_nan
from jquant.errors import ModelError
from jquant.formulas.granularity import Granularity
from jquant.onnx.converters.quantized_parameters import (
    LEVEL,
    are_of_a_batch,
    as_column,
    integers_product,
    matrices,
    plain,
    windows,
)
from jquant.onnx.converters.windows import resolved
from jquant.onnx.registry import converter
from jquant.operators.convolution_integer import convolution_integer
from jquant.operators.dequantize_linear import dequantize_linear
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear
from jquant.operators.quantize_linear import quantize_linear
from jquant.operators.quantized_linear_convolution import quantized_linear_convolution
from jquant.operators.quantized_linear_matmul import quantized_linear_matmul
from jquant.packed.matrix import PackedMatrix


def _dtype(output_dtype: int):
    return onnx.helper.tensor_dtype_to_np_dtype(output_dtype) if output_dtype else None


def _granularity(x, scale, axis: int, block_size: int) -> Granularity:
    """A scale with one element and at most one dimension applies to the whole tensor."""
    if scale.size == 1 and scale.ndim <= 1:
        return Granularity(None, None)
    return Granularity(axis % max(x.ndim, 1), block_size or None)


def _require_integers(dtype) -> None:
    if not jnp.issubdtype(dtype, jnp.integer):
        raise ModelError(f"products of type {np.dtype(dtype)} are not supported, only those of integers")


def _output_dtype(output_dtype: int, zero_point) -> np.dtype:
    if zero_point is not None:
        return zero_point.dtype
    return _dtype(output_dtype) or np.dtype(np.uint8)


def _saturates(dtype: np.dtype, saturate: int) -> bool:
    """The attribute `saturate` has no effect for types with finite numbers only."""
    return bool(saturate) or not has_infinities_or_nan(dtype)


def quantize_as_written(x, y_scale, y_zero_point, axis, block_size, output_dtype, saturate, precision=None):
    """The quotient is float32 unless another precision is named, whatever the types of `x` and `y_scale`."""
    options = _granularity(x, y_scale, axis, block_size)._asdict()
    options["saturate"] = _saturates(_output_dtype(output_dtype, y_zero_point), saturate)
    return quantize_linear(
        *(x, y_scale, y_zero_point), output_dtype=_dtype(output_dtype), precision=precision, feature_level=LEVEL, **options
    )


@converter("QuantizeLinear", since=10, until=22)
def quantize_to_22(x, y_scale, y_zero_point=None, *, axis=1, block_size=0, output_dtype=0, saturate=1):
    return quantize_as_written(x, y_scale, y_zero_point, axis, block_size, output_dtype, saturate)


@converter("QuantizeLinear", since=23)
def quantize(x, y_scale, y_zero_point=None, *, axis, block_size, output_dtype, precision, saturate):
    """The quotient is rounded to `precision`, or else to the type of the scale, if that is a float type."""
    has_fractions = jnp.issubdtype(y_scale.dtype, jnp.floating) and y_scale.dtype != e8m0.DTYPE
    precise = _dtype(precision) or (y_scale.dtype if has_fractions else None)
    return quantize_as_written(x, y_scale, y_zero_point, axis, block_size, output_dtype, saturate, precise)


@converter("DequantizeLinear", since=10)
def dequantize(x, x_scale, x_zero_point=None, *, axis=1, block_size=0, output_dtype=0):
    options = _granularity(x, x_scale, axis, block_size)._asdict()
    return dequantize_linear(x, x_scale, x_zero_point, output_dtype=_dtype(output_dtype), feature_level=LEVEL, **options)


@converter("DynamicQuantizeLinear", since=11)
def dynamic_quantize(x, *, where=None):
    """With a mask, the range is that of the positions that count. Every range includes 0."""
    return tuple(dynamic_quantize_linear(x, where=where))


@converter("MatMulInteger", since=10, packs={"B": "b_zero_point"})
def integer_product(A, B, a_zero_point=None, b_zero_point=None):
    """Zero points are per tensor, per row of A and column of B, or of these for each matrix of a batch."""
    a, b, shape = matrices(A, B)
    return integers_product(a, b, plain(a_zero_point), plain(b_zero_point)).reshape(shape)


@converter("QLinearMatMul", since=10, packs={"b": "b_zero_point"})
def quantized_product(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point):
    """Scales and zero points are per tensor, per row of A and of the output and per column of B, or of these for each
    matrix of a batch."""
    for each in (a, y_zero_point):
        _require_integers(each.dtype)
    a, b, shape = matrices(a, b)
    b_zero_point = None if isinstance(b, PackedMatrix) else b_zero_point
    parameters: list[Any] = [a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point]
    a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point = map(plain, parameters)
    if not are_of_a_batch(a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point):
        of_a, of_b = (a, a_scale, a_zero_point), (b, b_scale, b_zero_point)
        return quantized_linear_matmul(*of_a, *of_b, y_scale, y_zero_point, feature_level=LEVEL).reshape(shape)
    product = integers_product(a, b, a_zero_point, b_zero_point).astype(jnp.float32)
    a_scale, b_scale, y_scale = map(exact.widen, (as_column(a_scale), b_scale, as_column(y_scale)))
    ratio = exact.quotient(exact.product(a_scale, b_scale), y_scale)
    return rounding.nearest_integer(exact.product(product, ratio), as_column(y_zero_point), y_zero_point.dtype).reshape(
        shape
    )


@converter("ConvInteger", since=10)
def integer_convolution(
    x,
    w,
    x_zero_point=None,
    w_zero_point=None,
    *,
    auto_pad,
    dilations=None,
    group,
    kernel_shape=None,
    pads=None,
    strides=None,
):
    """Padding stands for zeros: it has the value of the input's zero point."""
    require_kernel(w, kernel_shape)
    x, pads = resolved(x, w.shape[2:], strides, dilations, pads, auto_pad)
    options = windows(dilations, group, pads, strides)
    return convolution_integer(x, w, plain(x_zero_point), plain(w_zero_point), **options)


@converter("QLinearConv", since=10)
def quantized_convolution(
    x,
    x_scale,
    x_zero_point,
    w,
    w_scale,
    w_zero_point,
    y_scale,
    y_zero_point,
    B=None,
    *,
    auto_pad,
    dilations=None,
    group,
    kernel_shape=None,
    pads=None,
    strides=None,
):
    """The bias is an integer, in units of the product of the scales."""
    require_kernel(w, kernel_shape)
    x, pads = resolved(x, w.shape[2:], strides, dilations, pads, auto_pad)
    options = windows(dilations, group, pads, strides)
    of_x, of_w = (x, plain(x_scale), plain(x_zero_point)), (w, plain(w_scale), plain(w_zero_point))
    return quantized_linear_convolution(*of_x, *of_w, plain(y_scale), plain(y_zero_point), B, **options)


def require_kernel(w, kernel_shape) -> None:
    if kernel_shape is not None and tuple(kernel_shape) != w.shape[2:]:
        raise ModelError(f"kernel_shape is {tuple(kernel_shape)}, but the filter has {w.shape[2:]}")
