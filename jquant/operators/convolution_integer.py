"""DML_CONVOLUTION_INTEGER"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jquant.arguments.call import Call
from jquant.arguments.convolutions import DimensionNumbers, geometry, signatures, with_depth
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.windows import Padding
from jquant.formulas.convolution_geometry import Geometry
from jquant.kernels.convolution.dispatch import convolution
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel
from jquant.placement import explain_array_errors

_OPERATOR = Operator("convolution_integer", "DML_CONVOLUTION_INTEGER")
_LATEST = (
    Tensor("InputTensor", "Input", (3, 4), "INT8 UINT8", "BatchCount InputChannelCount [InputHeight] InputWidth"),
    Tensor("InputZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] [1] [1] 1"),
    Tensor("FilterTensor", "Input", (3, 4), "INT8 UINT8", "FilterBatchCount FilterChannelCount [FilterHeight] FilterWidth"),
    Tensor("FilterZeroPointTensor", "Optional input", (1, 4), "INT8 UINT8", "[1] FilterZeroPointChannelCount [1] [1]"),
    Tensor("OutputTensor", "Output", (3, 4), "INT32", "BatchCount OutputChannelCount [OutputHeight] OutputWidth"),
)
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "EXTENDED": with_depth(_LATEST),
        "4_0": _LATEST,
        "2_1": (
            Tensor("InputTensor", "Input", (4, 4), "INT8 UINT8", "BatchCount InputChannelCount InputHeight InputWidth"),
            Tensor("InputZeroPointTensor", "Optional input", (4, 4), "INT8 UINT8", "1 1 1 1"),
            Tensor(
                "FilterTensor", "Input", (4, 4), "INT8 UINT8", "FilterBatchCount FilterChannelCount FilterHeight FilterWidth"
            ),
            Tensor("FilterZeroPointTensor", "Optional input", (4, 4), "INT8 UINT8", "1 FilterZeroPointChannelCount 1 1"),
            Tensor("OutputTensor", "Output", (4, 4), "INT32", "BatchCount OutputChannelCount OutputHeight OutputWidth"),
        ),
    },
    same_data_type=(("InputTensor", "InputZeroPointTensor"), ("FilterTensor", "FilterZeroPointTensor")),
    same_rank=(("FilterZeroPointTensor", "InputZeroPointTensor"), ("FilterTensor", "InputTensor", "OutputTensor")),
    counts={"FilterZeroPointChannelCount": "FilterBatchCount"},
    lacks="trailing",
)


@formula("convolution_integer", static=("geometry",))
def _convolution_integer(
    input: jax.Array,
    filter: jax.Array,
    input_zero_point: jax.Array | None,
    filter_zero_point: jax.Array | None,
    geometry: Geometry,
) -> jax.Array:
    return convolution(input, filter, input_zero_point, filter_zero_point, geometry)


@explain_array_errors
def convolution_integer(
    input: ArrayLike,
    /,
    filter: ArrayLike,
    input_zero_point: ArrayLike | None = None,
    filter_zero_point: ArrayLike | None = None,
    *,
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    dilations: Sequence[int] | None = None,
    groups: int = 1,
    dimension_numbers: DimensionNumbers = None,
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Convolves an integer tensor with filters, with zero points, into int32.

    ``output[n, o, y, x] = sum over c, i, j of (input[n, c, y * stride + i * dilation, x * stride + j * dilation] -
    input_zero_point) * (filter[o, c, i, j] - filter_zero_point[o])``

    Padding has the value of the input's zero point, so it adds nothing to a sum. The sum is taken modulo 2**32: it is exact
    up to 33,025 terms and wraps where the true value leaves int32. As in the specification, and in `jax.lax`, the filter is
    not flipped. Every combination of signed and unsigned operands runs on the platform's int8 unit where there is a sum over
    channels (measured on a CPU; for a TPU, read from the compiled programs). The bits are the same everywhere.

    The result is an integer array and has no derivative (JAX's zero, of type float0).

    Args:
      input: int8 or uint8, of shape (N, C, H, W) or (N, C, W); (N, C, D, H, W) at `FeatureLevel.EXTENDED`.
      filter: int8 or uint8, of shape (O, C / groups, H, W), and the rank of `input`.
      input_zero_point: of the dtype of `input`, one element. None means 0.
      filter_zero_point: of the dtype of `filter`: a scalar, or one per filter in shape (O,), (1, O), (1, O, 1) or
        (1, O, 1, 1), whatever the layout. None means 0.
      strides: the step from one window to the next, in each spatial dimension. None means 1.
      padding: ``"VALID"``, ``"SAME"`` (ONNX's ``"SAME_UPPER"``), ``"SAME_LOWER"``; a pair (before, after) for each spatial
        dimension; or, as in ONNX, all numbers before, followed by all numbers after: ``[top, left, bottom, right]``.
      dilations: the step from one element of a window to the next, in each spatial dimension. None means 1.
      groups: the number of independent convolutions, each of C / groups channels and O / groups filters.
      dimension_numbers: another layout, as `jax.lax.conv_general_dilated` takes it: ``("NHWC", "HWIO", "NHWC")``.
      feature_level: the DirectML feature level whose table applies; the operator exists from 2_1 on. The specification's
        table covers the shapes above; `FeatureLevel.EXTENDED` adds a third spatial dimension.

    Returns:
      An int32 array of shape (N, O, ...), or in the layout of `dimension_numbers`.

    Raises:
      DescriptorError: a rank, size or level outside of the table, a scalar that its type cannot hold, or groups, strides,
        padding, dilations or a layout that do not fit the tensors, such as a filter larger than the padded input.
      DescriptorTypeError: a data type outside of the table.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.arange(16, dtype=jnp.uint8).reshape(1, 1, 4, 4)
      >>> w = jnp.array([[[[1, 2], [0, -1]]]], jnp.int8)
      >>> jquant.convolution_integer(x, w, 5, strides=(2, 2))
      Array([[[[-13,  -9],
               [  3,   7]]]], dtype=int32)

    References:
      DirectML, `DML_CONVOLUTION_INTEGER_OPERATOR_DESC`. ONNX, `ConvInteger`.
    """
    call = Call(_DESCRIPTOR, feature_level)
    input = call.tensor("InputTensor", input)
    input_zero_point = call.zero_point("Input", input_zero_point, input.dtype)
    filter = call.tensor("FilterTensor", filter)
    filter_zero_point = call.zero_point("Filter", filter_zero_point, filter.dtype)
    static = geometry(_OPERATOR, input, filter, strides, padding, dilations, groups, dimension_numbers)
    ordered_input, ordered_filter, output_sizes = signatures(static, input, filter)
    call.check(output_sizes, jnp.dtype(jnp.int32), InputTensor=ordered_input, FilterTensor=ordered_filter)
    return _convolution_integer(input, filter, input_zero_point, filter_zero_point, static)
