"""ONNX's own quantized operators."""

import jax.numpy as jnp
import numpy as np
import onnx

from jquant.arithmetic import e8m0, exact, rounding
from jquant.arithmetic.narrow_floats import has_infinities_or_nan
from jquant.errors import ModelError
from jquant.formulas.granularity import Granularity
from jquant.onnx.converters.quantized_parameters import (
    FEATURE_LEVEL,
    any_batched,
    as_column,
    as_matrices,
    convolution_options,
    flat,
    integer_product,
)
from jquant.onnx.converters.windows import resolve_padding
from jquant.onnx.registry import converter
from jquant.operators.convolution_integer import convolution_integer
from jquant.operators.dequantize_linear import dequantize_linear
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear
from jquant.operators.quantize_linear import quantize_linear
from jquant.operators.quantized_linear_convolution import quantized_linear_convolution
from jquant.operators.quantized_linear_matmul import quantized_linear_matmul
from jquant.packed.matrix import PackedMatrix


def _dtype(data_type: int):
    """The dtype of an element type of ONNX; None for 0, which means that it is not set."""
    return onnx.helper.tensor_dtype_to_np_dtype(data_type) if data_type else None


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


def quantize_with_precision(x, y_scale, y_zero_point, *, axis, block_size, output_dtype, saturate, precision=None):
    """The quotient is float32 unless another precision is named, whatever the types of `x` and `y_scale`."""
    return quantize_linear(
        x,
        scale=y_scale,
        zero_point=y_zero_point,
        **_granularity(x, y_scale, axis, block_size)._asdict(),
        output_dtype=_dtype(output_dtype),
        saturate=_saturates(_output_dtype(output_dtype, y_zero_point), saturate),
        precision=precision,
        feature_level=FEATURE_LEVEL,
    )


@converter("QuantizeLinear", since=10, until=22)
def quantize_to_22(x, y_scale, y_zero_point=None, *, axis=1, block_size=0, output_dtype=0, saturate=1):
    return quantize_with_precision(
        x, y_scale, y_zero_point, axis=axis, block_size=block_size, output_dtype=output_dtype, saturate=saturate
    )


@converter("QuantizeLinear", since=23)
def quantize(x, y_scale, y_zero_point=None, *, axis, block_size, output_dtype, precision, saturate):
    """The quotient is rounded to `precision`, or else to the type of the scale, if that is a float type."""
    has_fractions = jnp.issubdtype(y_scale.dtype, jnp.floating) and y_scale.dtype != e8m0.DTYPE
    return quantize_with_precision(
        x,
        y_scale,
        y_zero_point,
        axis=axis,
        block_size=block_size,
        output_dtype=output_dtype,
        saturate=saturate,
        precision=_dtype(precision) or (y_scale.dtype if has_fractions else None),
    )


@converter("DequantizeLinear", since=10)
def dequantize(x, x_scale, x_zero_point=None, *, axis=1, block_size=0, output_dtype=0):
    return dequantize_linear(
        x,
        scale=x_scale,
        zero_point=x_zero_point,
        **_granularity(x, x_scale, axis, block_size)._asdict(),
        output_dtype=_dtype(output_dtype),
        feature_level=FEATURE_LEVEL,
    )


@converter("DynamicQuantizeLinear", since=11)
def dynamic_quantize(x, *, where=None):
    """With a mask, the range is that of the positions that count. Every range includes 0."""
    return tuple(dynamic_quantize_linear(x, where=where))


@converter("MatMulInteger", since=10, packs={"B": "b_zero_point"})
def matmul_to_int32(A, B, a_zero_point=None, b_zero_point=None):
    """Zero points are per tensor, or per row of A and column of B, or such vectors for each matrix of a batch."""
    a, b, shape = as_matrices(A, B)
    return integer_product(a, b, flat(a_zero_point), flat(b_zero_point)).reshape(shape)


@converter("QLinearMatMul", since=10, packs={"b": "b_zero_point"})
def quantized_matmul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point):
    """Scales and zero points are per tensor, or per row of A and of the output and per column of B, or such vectors for
    each matrix of a batch."""
    for each in (a, y_zero_point):
        _require_integers(each.dtype)
    a, b, shape = as_matrices(a, b)
    b_zero_point = None if isinstance(b, PackedMatrix) else b_zero_point
    a_scale, a_zero_point = flat(a_scale), flat(a_zero_point)
    b_scale, b_zero_point = flat(b_scale), flat(b_zero_point)
    y_scale, y_zero_point = flat(y_scale), flat(y_zero_point)
    if not any_batched(a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point):
        return quantized_linear_matmul(
            a,
            a_scale=a_scale,
            a_zero_point=a_zero_point,
            b=b,
            b_scale=b_scale,
            b_zero_point=b_zero_point,
            output_scale=y_scale,
            output_zero_point=y_zero_point,
            feature_level=FEATURE_LEVEL,
        ).reshape(shape)
    product = integer_product(a, b, a_zero_point, b_zero_point).astype(jnp.float32)
    a_scale, b_scale, y_scale = map(exact.widen, (as_column(a_scale), b_scale, as_column(y_scale)))
    ratio = exact.quotient(exact.product(a_scale, b_scale), y_scale)
    y = rounding.nearest_integer(exact.product(product, ratio), as_column(y_zero_point), y_zero_point.dtype)
    return y.reshape(shape)


@converter("ConvInteger", since=10)
def convolution_to_int32(
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
    """Padding represents the real number 0: it has the value of the input's zero point."""
    require_kernel(w, kernel_shape)
    x, pads = resolve_padding(x, w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    return convolution_integer(
        x,
        filter=w,
        input_zero_point=flat(x_zero_point),
        filter_zero_point=flat(w_zero_point),
        **convolution_options(dilations=dilations, group=group, pads=pads, strides=strides),
    )


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
    x, pads = resolve_padding(x, w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    return quantized_linear_convolution(
        x,
        input_scale=flat(x_scale),
        input_zero_point=flat(x_zero_point),
        filter=w,
        filter_scale=flat(w_scale),
        filter_zero_point=flat(w_zero_point),
        output_scale=flat(y_scale),
        output_zero_point=flat(y_zero_point),
        bias=B,
        **convolution_options(dilations=dilations, group=group, pads=pads, strides=strides),
    )


def require_kernel(w, kernel_shape) -> None:
    """
    Raises:
      ModelError: the filter does not have the shape of the attribute `kernel_shape`.
    """
    if kernel_shape is not None and tuple(kernel_shape) != w.shape[2:]:
        raise ModelError(f"kernel_shape is {tuple(kernel_shape)}, but the filter has {w.shape[2:]}")
