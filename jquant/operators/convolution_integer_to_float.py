"""What ONNX has as ConvInteger, Cast, Mul and Add"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.call import Call
from jquant.arguments.convolutions import DimensionNumbers, geometry, signatures, with_depth
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.windows import Padding
from jquant.formulas.convolution_geometry import Geometry
from jquant.kernels.convolution.dispatch import convolution
from jquant.kernels.epilogue import dequantize
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel, data_type
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized

_OPERATOR = Operator("convolution_integer_to_float")
_LATEST = (  # in no specification: CONVOLUTION_INTEGER's, with the floats of MATRIX_MULTIPLY_INTEGER_TO_FLOAT
    Tensor("InputTensor", "Input", (3, 4), "INT8 UINT8", "BatchCount InputChannelCount [InputHeight] InputWidth"),
    Tensor("InputScaleTensor", "Input", (1, 4), "FLOAT32 FLOAT16", "[1] [1] [1] 1"),
    Tensor("InputZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] [1] 1"),
    Tensor("FilterTensor", "Input", (3, 4), "INT8 UINT8", "FilterBatchCount FilterChannelCount [FilterHeight] FilterWidth"),
    Tensor("FilterScaleTensor", "Input", (1, 4), "FLOAT32 FLOAT16", "[1] FilterScaleChannelCount [1] [1]"),
    Tensor("FilterZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] FilterZeroPointChannelCount [1] [1]"),
    Tensor("BiasTensor", "Optional input", (1, 4), "FLOAT32 FLOAT16", "[1] BiasChannelCount [1] [1]"),
    Tensor("OutputTensor", "Output", (3, 4), "FLOAT32 FLOAT16", "BatchCount OutputChannelCount [OutputHeight] OutputWidth"),
)
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "EXTENDED": with_depth(_LATEST),
        "6_2": _LATEST,
    },
    same_data_type=(
        ("InputTensor", "InputZeroPointTensor"),
        ("FilterTensor", "FilterZeroPointTensor"),
        ("InputScaleTensor", "FilterScaleTensor"),
        ("InputScaleTensor", "BiasTensor"),
    ),
    same_rank=(("FilterTensor", "InputTensor", "OutputTensor"),),
    counts={
        "FilterScaleChannelCount": "FilterBatchCount",
        "FilterZeroPointChannelCount": "FilterBatchCount",
        "BiasChannelCount": "FilterBatchCount",
    },
    lacks="trailing",
)


@formula("convolution_integer_to_float", static=("output_dtype", "geometry"))
def _convolution_integer_to_float(
    input: Quantized, filter: Quantized, bias: jax.Array | None, output_dtype: np.dtype, geometry: Geometry
) -> jax.Array:
    epilogue = (dequantize(input.scale, filter.scale, bias, output_dtype),)
    return convolution(input.values, filter.values, input.zero_point, filter.zero_point, geometry, epilogue)


@explain_array_errors
def convolution_integer_to_float(
    input: ArrayLike,
    /,
    input_scale: ArrayLike,
    input_zero_point: ArrayLike | None,
    filter: ArrayLike,
    filter_scale: ArrayLike,
    filter_zero_point: ArrayLike | None = None,
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
    """Convolves an integer tensor with integer filters and dequantizes the sums, in one pass.

    ``product = convolution_integer(input, filter, input_zero_point, filter_zero_point)``, and
    ``output = float32(product) * (input_scale * filter_scale[o]) + bias[o]``, for each filter o

    The product is `convolution_integer`'s, modulo 2**32. Its conversion to float32, the product of the scales, the product
    of the two, and the sum with the bias are each rounded once to float32, half to even; a 16-bit output is rounded once
    more. `matmul_integer_to_float` has the same order. Neither DirectML nor ONNX has this operator: ONNX models use four in
    its place, ConvInteger, Cast, Mul and Add, which apply the same order. The table is jquant's own.

    It is differentiable in the scales and in the bias. Integers have no derivative (JAX's zero, of type float0).

    Args:
      input: as for `convolution_integer`.
      input_scale: float32 or float16, one element.
      input_zero_point: of the dtype of `input`, one element. None means 0.
      filter: as for `convolution_integer`.
      filter_scale: of the dtype of `input_scale`: a scalar, or one per filter in shape (O,), (1, O), (1, O, 1) or
        (1, O, 1, 1), whatever the layout.
      filter_zero_point: of the dtype of `filter`, in the shapes of `filter_scale`. None means 0.
      bias: of the dtype of `input_scale`, in the shapes of `filter_scale`, in real numbers. None means 0.
      strides, padding, dilations, groups: as for `convolution_integer`.
      dimension_numbers: another layout than NCHW and OIHW: ``("NHWC", "HWIO", "NHWC")`` is Flax's.
      output_dtype: None means that of `input_scale`; `FeatureLevel.EXTENDED` takes any of float32, float16 and bfloat16.
      feature_level: as for `matmul_integer_to_float`: the operator exists from 6_2 on. `FeatureLevel.EXTENDED` adds a third
        spatial dimension, and bfloat16.

    Returns:
      An array of shape (N, O, ...), or in the layout of `dimension_numbers`, of `output_dtype`.

    Raises:
      DescriptorError: as for `convolution_integer`.
      DescriptorTypeError: a data type outside of the table, or an `output_dtype` that is not that of `input_scale`, below
        `FeatureLevel.EXTENDED`.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.arange(16, dtype=jnp.uint8).reshape(1, 1, 4, 4)
      >>> w = jnp.array([[[[1, 2], [0, -1]]]], jnp.int8)
      >>> jquant.convolution_integer_to_float(x, 0.5, 5, w, 0.25, None, 10.0, strides=(2, 2))
      Array([[[[ 8.375,  8.875],
               [10.375, 10.875]]]], dtype=float32)

    References:
      ONNX, `ConvInteger`, with `Cast`, `Mul` (of the scales, and with their product) and `Add` behind it.
    """
    call = Call(_DESCRIPTOR, feature_level)
    float_dtype = call.float_data_type("InputScaleTensor", input_scale, filter_scale, bias)
    image = call.quantized("Input", input, input_scale, input_zero_point, float_dtype)
    filters = call.quantized("Filter", filter, filter_scale, filter_zero_point, float_dtype)
    bias = call.optional_one_or_more("BiasTensor", bias, float_dtype)
    output_dtype = image.scale.dtype if output_dtype is None else data_type("output_dtype", output_dtype)
    static = geometry(_OPERATOR, image.values, filters.values, strides, padding, dilations, groups, dimension_numbers)
    ordered_input, ordered_filter, output_sizes = signatures(static, image.values, filters.values)
    call.check(output_sizes, output_dtype, InputTensor=ordered_input, FilterTensor=ordered_filter)
    call.require_output_data_type(output_dtype, "InputScaleTensor", image.scale.dtype)
    return _convolution_integer_to_float(image, filters, bias, output_dtype, static)
