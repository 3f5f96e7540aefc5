"""ONNX's own quantized operators."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from jquant.arithmetic import e8m0, exact, rounding
from jquant.arithmetic.narrow_floats import has_infinities_or_nan
from jquant.errors import ModelError
from jquant.formulas.granularity import Granularity
from jquant.kernels.epilogue import Dequantize
from jquant.onnx.nodes.quantized_parameters import (
    FEATURE_LEVEL,
    any_batched,
    as_column,
    as_matrices,
    convolution_options,
    flat,
    flat_pair,
    integer_product,
    with_parameters,
)
from jquant.onnx.nodes.windows import ConvolutionAttributes, resolve_padding
from jquant.onnx.running.registry import converter
from jquant.onnx.writing import quantized_products as products
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.convolution_layouts import arranged_filter, arranged_input, restored
from jquant.onnx.writing.formulas import affine
from jquant.onnx.writing.integer_products import convolution_attributes, followed, is_single
from jquant.onnx.writing.steps import cast, elementwise, like, reshape
from jquant.onnx.writing.table import writer
from jquant.onnx.writing.tensor import Tensor, all_known
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


@converter("QuantizeLinear", since=10, until=22, counterparts=("quantize_linear",))
def quantize_to_22(x, y_scale, y_zero_point=None, *, axis=1, block_size=0, output_dtype=0, saturate=1):
    return quantize_with_precision(
        x, y_scale, y_zero_point, axis=axis, block_size=block_size, output_dtype=output_dtype, saturate=saturate
    )


@converter("QuantizeLinear", since=23, counterparts=("quantize_linear",))
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


@writer("quantize_linear", node="QuantizeLinear", since=10)
def write_quantize(
    builder: Builder,
    _: Any,
    input: Tensor,
    output: Any,  # a `ScaleZeroPoint` of values
    output_dtype: np.dtype,
    granularity: Granularity,
    saturate: bool,
    precision: np.dtype,
) -> Tensor | None:
    """QuantizeLinear to integers, with float32 operands, so that the quotient has that precision in every version.

    In the exact form, blocks are a formula where a newer operator set would be needed for the attribute alone.
    """
    dtype = np.dtype(output_dtype)
    if all_known(input, output) or precision != np.float32 or not jnp.issubdtype(dtype, jnp.integer):
        return None
    if builder.shared.form == "exact" and granularity.block_size and builder.version < 21 and jnp.iinfo(dtype).bits > 4:
        return None
    parameters = affine.parameters(builder, input.shape, output.scale, output.zero_point, *granularity)
    return affine.quantize(builder, input, parameters, dtype)


@converter("DequantizeLinear", since=10, counterparts=("dequantize_linear",))
def dequantize(x, x_scale, x_zero_point=None, *, axis=1, block_size=0, output_dtype=0):
    return dequantize_linear(
        x,
        scale=x_scale,
        zero_point=x_zero_point,
        **_granularity(x, x_scale, axis, block_size)._asdict(),
        output_dtype=_dtype(output_dtype),
        feature_level=FEATURE_LEVEL,
    )


@writer("dequantize_linear", node="DequantizeLinear", since=10, keeps_weights=True)
def write_dequantize(
    builder: Builder, _: Any, input: Any, output_dtype: np.dtype, granularity: Granularity
) -> Tensor | None:
    """In the exact form, the formula: onnxruntime merges this node with those around it, and computes differently."""
    if builder.shared.form == "exact":
        return None
    parameters = affine.parameters(builder, input.values.shape, input.scale, input.zero_point, *granularity)
    result = affine.dequantize(builder, input.values, parameters)
    return None if result is None else cast(builder, result, output_dtype)


@converter("DynamicQuantizeLinear", since=11, counterparts=("dynamic_quantize_linear", "scale_and_zero_point"))
def dynamic_quantize(x, *, where=None):
    """With a mask, the range is that of the positions that count. Every range includes 0."""
    return tuple(dynamic_quantize_linear(x, where=where))


@writer("dynamic_quantize_linear", node="DynamicQuantizeLinear", since=11)
def write_dynamic_quantize(
    builder: Builder,
    types: Any,
    input: Tensor,
    where: Tensor | None,
    axes: tuple[int, ...] | None,
    symmetric: bool,
    dtype: np.dtype,
) -> list[Tensor] | None:
    """A range of all elements. With a mask, the node finds the range, and another one quantizes by it."""
    if axes is not None or symmetric or dtype != np.uint8 or input.is_known:
        return None
    output, scale, zero_point = types
    x = cast(builder, input, np.float32)
    counted = x if where is None else elementwise(builder, "Where", where, x, like(x, 0), dtype=np.float32)
    results = builder.node("DynamicQuantizeLinear", [counted], [output, scale, zero_point], since=11, label="quantized")
    if where is not None:
        parameters = affine.parameters(builder, x.shape, results[1], results[2])
        results[0] = affine.quantize(builder, x, parameters, dtype)
    return results


@converter("MatMulInteger", since=10, packs={"B": "b_zero_point"}, counterparts=("matmul_integer",))
def matmul_to_int32(A, B, a_zero_point=None, b_zero_point=None):
    """Zero points are per tensor, or per row of A and column of B, or such vectors for each matrix of a batch."""
    a, b, shape = as_matrices(A, B)
    return integer_product(a, b, flat(a_zero_point), flat(b_zero_point)).reshape(shape)


@converter("QLinearMatMul", since=10, packs={"b": "b_zero_point"}, counterparts=("quantized_linear_matmul",))
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


@converter("ConvInteger", since=10, counterparts=("convolution_integer", "convolution_integer_to_float"))
def convolution_to_int32(x, w, x_zero_point=None, w_zero_point=None, *, attributes: ConvolutionAttributes):
    """Padding represents the real number 0: it has the value of the input's zero point."""
    require_kernel(w, attributes.kernel_shape)
    x, attributes = resolve_padding(x, w.shape[2:], attributes)
    return convolution_integer(
        x,
        filter=w,
        input_zero_point=flat(x_zero_point),
        filter_zero_point=flat(w_zero_point),
        **convolution_options(attributes),
    )


@converter("QLinearConv", since=10, counterparts=("quantized_linear_convolution",))
def quantized_convolution(
    x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B=None, *, attributes: ConvolutionAttributes
):
    """The bias is an integer, in units of the product of the scales."""
    require_kernel(w, attributes.kernel_shape)
    x, attributes = resolve_padding(x, w.shape[2:], attributes)
    return quantized_linear_convolution(
        *with_parameters(x, x_scale, x_zero_point),
        *with_parameters(w, w_scale, w_zero_point),
        *flat_pair(y_scale, y_zero_point),
        B,
        **convolution_options(attributes),
    )


def require_kernel(w, kernel_shape) -> None:
    """
    Raises:
      ModelError: the filter does not have the shape of the attribute `kernel_shape`.
    """
    if kernel_shape is not None and tuple(kernel_shape) != w.shape[2:]:
        raise ModelError(f"kernel_shape is {tuple(kernel_shape)}, but the filter has {w.shape[2:]}")


@writer("matmul_integer", node="MatMulInteger", since=10)
def _write_matmul_integer(builder: Builder, types, *, a, b, a_zero_point, b_zero_point, implementation):
    if all_known(a, b, a_zero_point, b_zero_point):
        return None
    return products.product(builder, a, b, a_zero_point, b_zero_point)


@writer("matmul_integer_to_float", node="MatMulInteger", since=10)
def _write_matmul_integer_to_float(builder: Builder, types, *, a, b, bias, output_dtype, implementation):
    """MatMulInteger, then the scales and the bias. Floats are quantized first, as the formula says."""
    if all_known(a, b, bias) or np.dtype(a.values.dtype).itemsize > 1:
        return None
    product = products.product(builder, a.values, b.values, a.zero_point, b.zero_point)
    scales = [cast(builder, scale, np.float32) for scale in (a.scale, b.scale)]
    bias = None if bias is None else cast(builder, bias, np.float32)
    a_scale, b_scale = products.column(builder, scales[0]), products.row(builder, scales[1])
    step: Any = Dequantize(a_scale, b_scale, bias, output_dtype)  # type: ignore[arg-type]
    return followed(builder, (step,), product)


@writer("quantized_linear_matmul", node="QLinearMatMul", since=10)
def _write_quantized_matmul(builder: Builder, types, *, a, b, output, output_dtype, implementation):
    operands = products.linear_operands(builder, a, b, output, output_dtype)
    if operands is None:
        return None
    return builder.node("QLinearMatMul", [*operands.a, *operands.b, *operands.output], types[0], since=10, label="quantized")


@writer("quantized_linear_convolution", node="QLinearConv", since=10)
def _write_quantized_convolution(builder: Builder, types, *, input, filter, bias, output, output_dtype, geometry):
    """onnxruntime's kernel takes one zero point for all filters."""
    operands = products.linear_operands(builder, input, filter, output, output_dtype)
    if operands is None or (filter.zero_point is not None and not is_single(filter.zero_point)):
        return None
    x, w = arranged_input(builder, input.values, geometry), arranged_filter(builder, filter.values, geometry)
    bias = None if bias is None else reshape(builder, bias, (w.shape[0],))
    type = jax.ShapeDtypeStruct((x.shape[0], w.shape[0], *geometry.windows.counts(x.shape[2:])), output_dtype)
    inputs = [x, *operands.a[1:], w, *operands.b[1:], *operands.output, bias]
    result = builder.node("QLinearConv", inputs, type, since=10, label="quantized", **convolution_attributes(geometry))
    return restored(builder, result, geometry)
