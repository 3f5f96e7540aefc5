"""DML_QUANTIZED_LINEAR_CONVOLUTION"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.call import Call
from jquant.arguments.convolutions import DimensionNumbers, geometry, signatures, with_depth
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.windows import Padding
from jquant.formulas.convolution_geometry import Geometry
from jquant.kernels.convolution.dispatch import convolution
from jquant.kernels.epilogue import AddBias, requantize
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_OPERATOR = Operator("quantized_linear_convolution", "DML_QUANTIZED_LINEAR_CONVOLUTION")
_LATEST = (
    Tensor("InputTensor", "Input", (3, 4), "INT8 UINT8", "BatchCount InputChannelCount [InputHeight] InputWidth"),
    Tensor("InputScaleTensor", "Input", (1, 4), "FLOAT32", "[1] [1] [1] 1"),
    Tensor("InputZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] [1] 1"),
    Tensor("FilterTensor", "Input", (3, 4), "INT8 UINT8", "FilterBatchCount FilterChannelCount [FilterHeight] FilterWidth"),
    Tensor("FilterScaleTensor", "Input", (1, 4), "FLOAT32", "[1] FilterScaleChannelCount [1] [1]"),
    Tensor("FilterZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] FilterZeroPointChannelCount [1] [1]"),
    Tensor("BiasTensor", "Optional input", (3, 4), "INT32", "1 FilterBatchCount [1] 1"),
    Tensor("OutputScaleTensor", "Input", (1, 4), "FLOAT32", "[1] [1] [1] 1"),
    Tensor("OutputZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] [1] 1"),
    Tensor("OutputTensor", "Output", (3, 4), "INT8 UINT8", "BatchCount OutputChannelCount [OutputHeight] OutputWidth"),
)
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "EXTENDED": with_depth(_LATEST),
        "5_2": _LATEST,
        "4_0": (
            Tensor("InputTensor", "Input", (3, 4), "INT8 UINT8", "BatchCount InputChannelCount [InputHeight] InputWidth"),
            Tensor("InputScaleTensor", "Input", (1, 4), "FLOAT32", "[1] [1] [1] 1"),
            Tensor("InputZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] [1] 1"),
            Tensor(
                "FilterTensor",
                "Input",
                (3, 4),
                "INT8 UINT8",
                "FilterBatchCount FilterChannelCount [FilterHeight] FilterWidth",
            ),
            Tensor("FilterScaleTensor", "Input", (3, 4), "FLOAT32", "[1] FilterScaleChannelCount [1] [1]"),
            Tensor(
                "FilterZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] FilterZeroPointChannelCount [1] [1]"
            ),
            Tensor("BiasTensor", "Optional input", (3, 4), "INT32", "1 FilterBatchCount [1] 1"),
            Tensor("OutputScaleTensor", "Input", (1, 4), "FLOAT32", "[1] [1] [1] 1"),
            Tensor("OutputZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] [1] 1"),
            Tensor(
                "OutputTensor", "Output", (3, 4), "INT8 UINT8", "BatchCount OutputChannelCount [OutputHeight] OutputWidth"
            ),
        ),
        "2_1": (
            Tensor("InputTensor", "Input", (4, 4), "INT8 UINT8", "BatchCount InputChannelCount InputHeight InputWidth"),
            Tensor("InputScaleTensor", "Input", (4, 4), "FLOAT32", "1 1 1 1"),
            Tensor("InputZeroPointTensor", "Optional input", (4, 4), "INT8 UINT8", "1 1 1 1"),
            Tensor(
                "FilterTensor", "Input", (4, 4), "INT8 UINT8", "FilterBatchCount FilterChannelCount FilterHeight FilterWidth"
            ),
            Tensor("FilterScaleTensor", "Input", (4, 4), "FLOAT32", "1 FilterScaleChannelCount 1 1"),
            Tensor("FilterZeroPointTensor", "Optional input", (4, 4), "INT8 UINT8", "1 FilterZeroPointChannelCount 1 1"),
            Tensor("BiasTensor", "Optional input", (4, 4), "INT32", "1 FilterBatchCount 1 1"),
            Tensor("OutputScaleTensor", "Input", (4, 4), "FLOAT32", "1 1 1 1"),
            Tensor("OutputZeroPointTensor", "Optional input", (4, 4), "INT8 UINT8", "1 1 1 1"),
            Tensor("OutputTensor", "Output", (4, 4), "INT8 UINT8", "BatchCount OutputChannelCount OutputHeight OutputWidth"),
        ),
    },
    same_data_type=(
        ("FilterTensor", "FilterZeroPointTensor"),
        ("InputTensor", "InputZeroPointTensor"),
        ("OutputTensor", "OutputZeroPointTensor"),
    ),
    same_rank=(("BiasTensor", "FilterTensor", "InputTensor", "OutputTensor"),),
    counts={"FilterScaleChannelCount": "FilterBatchCount", "FilterZeroPointChannelCount": "FilterBatchCount"},
    lacks="trailing",
)


@formula("quantized_linear_convolution", static=("output_dtype", "geometry"))
def _quantized_linear_convolution(
    input: Quantized,
    filter: Quantized,
    bias: jax.Array | None,
    output: ScaleZeroPoint,
    output_dtype: np.dtype,
    geometry: Geometry,
) -> jax.Array:
    input_scale, filter_scale, output_scale = (x.scale.reshape(-1) for x in (input, filter, output))
    epilogue = (requantize(input_scale, filter_scale, output._replace(scale=output_scale), output_dtype),)
    if bias is not None:
        epilogue = (AddBias(bias), *epilogue)
    return convolution(input.values, filter.values, input.zero_point, filter.zero_point, geometry, epilogue)


@explain_array_errors
def quantized_linear_convolution(
    input: ArrayLike,
    /,
    input_scale: ArrayLike,
    input_zero_point: ArrayLike | None,
    filter: ArrayLike,
    filter_scale: ArrayLike,
    filter_zero_point: ArrayLike | None,
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    dilations: Sequence[int] | None = None,
    groups: int = 1,
    dimension_numbers: DimensionNumbers = None,
    output_dtype: DTypeLike | str | None = None,
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Convolves a quantized tensor with quantized filters, adds a bias and quantizes the sum, in one pass.

    ``sum = convolution_integer(input, filter, input_zero_point, filter_zero_point) + bias``, and
    ``output = saturate(round(float32(sum) * ((input_scale * filter_scale) / output_scale)) + output_zero_point)``

    The sum is an integer, modulo 2**32. Each operation after it is rounded once to float32; the last product is rounded to
    the nearest integer, ties to even, *before* the output zero point is added. The specification promises no order of
    operations; this is onnxruntime's. NaN, which only scales of 0, infinity or NaN can produce and the specification leaves
    undefined, gives 0.

    The result is an integer array and has no derivative (JAX's zero, of type float0). To train through the rounding, use
    `quantize_and_dequantize` or `fake_quantize`.

    Args:
      input: as for `convolution_integer`.
      input_scale: float32, one element.
      input_zero_point: of the dtype of `input`, one element. None means 0.
      filter: as for `convolution_integer`.
      filter_scale: float32: a scalar, or one per filter in shape (O,), (1, O), (1, O, 1) or (1, O, 1, 1), whatever the
        layout.
      filter_zero_point: of the dtype of `filter`, in the shapes of `filter_scale`. None means 0.
      output_scale: float32, one element.
      output_zero_point: of the dtype of the output, one element. None means 0.
      bias: int32, in units of ``input_scale * filter_scale``, of shape (1, O, 1, 1), whatever the layout, and the rank of
        `input`; also (O,) at ``FeatureLevel.EXTENDED``. None means 0.
      strides, padding, dilations, groups: as for `convolution_integer`.
      dimension_numbers: another layout than NCHW and OIHW: ``("NHWC", "HWIO", "NHWC")`` is Flax's.
      output_dtype: int8 or uint8. None: the dtype of `output_zero_point` if that is an array, else that of `input`.
      feature_level: the DirectML feature level whose table applies; the operator exists from 2_1 on. `FeatureLevel.EXTENDED`
        adds a third spatial dimension and a bias of shape (O,).

    Returns:
      An array of shape (N, O, ...), or in the layout of `dimension_numbers`, of `output_dtype`.

    Raises:
      DescriptorError: as for `convolution_integer`.
      DescriptorTypeError: a data type outside of the table, or an `output_dtype` that is not that of
        `output_zero_point`.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.arange(16, dtype=jnp.uint8).reshape(1, 1, 4, 4)
      >>> w = jnp.array([[[[1, 2], [0, -1]]]], jnp.int8)
      >>> bias = jnp.array([[[[10]]]], jnp.int32)
      >>> jquant.quantized_linear_convolution(x, 0.5, 5, w, 0.25, None, 0.5, 100, bias, strides=(2, 2))
      Array([[[[ 99, 100],
               [103, 104]]]], dtype=uint8)

    References:
      DirectML, `DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC`. ONNX, `QLinearConv`, whose bias has shape (O,).
    """
    call = Call(_DESCRIPTOR, feature_level)
    image = call.quantized("Input", input, input_scale, input_zero_point)
    filters = call.quantized("Filter", filter, filter_scale, filter_zero_point)
    bias = call.optional_tensor("BiasTensor", bias, jnp.dtype(jnp.int32))
    output, output_dtype = call.output("Output", output_scale, output_zero_point, output_dtype, default=image.values.dtype)
    static = geometry(_OPERATOR, image.values, filters.values, strides, padding, dilations, groups, dimension_numbers)
    ordered_input, ordered_filter, output_sizes = signatures(static, image.values, filters.values)
    call.check(output_sizes, output_dtype, InputTensor=ordered_input, FilterTensor=ordered_filter)
    return _quantized_linear_convolution(image, filters, bias, output, output_dtype, static)
