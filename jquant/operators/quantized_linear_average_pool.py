"""DML_QUANTIZED_LINEAR_AVERAGE_POOLING"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.call import Call
from jquant.arguments.constraints import check_rank
from jquant.arguments.descriptor import Descriptor, Tensor
from jquant.arguments.naming import Operator
from jquant.arguments.statics import boolean, positive_integers
from jquant.arguments.windows import Padding, windows
from jquant.formulas import affine, pooling
from jquant.formulas.windows import Windows
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel
from jquant.placement import explain_array_errors
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_OPERATOR = Operator("quantized_linear_average_pool", "DML_QUANTIZED_LINEAR_AVERAGE_POOLING")
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "6_2": (
            Tensor("InputTensor", "Input", (4, 5), "INT8 UINT8", "BatchCount ChannelCount [Depth] Height Width"),
            Tensor("InputScaleTensor", "Input", (1, 5), "FLOAT32"),
            Tensor("InputZeroPointTensor", "Optional input", (1, 5), "INT8 UINT8"),
            Tensor("OutputScaleTensor", "Input", (1, 5), "FLOAT32"),
            Tensor("OutputZeroPointTensor", "Optional input", (1, 5), "INT8 UINT8"),
            Tensor("OutputTensor", "Output", (4, 5), "INT8 UINT8"),
        ),
    },
    same_data_type=(("InputTensor", "InputZeroPointTensor"), ("OutputTensor", "OutputZeroPointTensor")),
    same_rank=(("InputTensor", "OutputTensor"),),
    per_channel=("InputScaleTensor", "InputZeroPointTensor", "OutputScaleTensor", "OutputZeroPointTensor"),
)


@formula("quantized_linear_average_pool", static=("w", "include_padding", "output_dtype"))
def _quantized_linear_average_pool(
    input: Quantized, output: ScaleZeroPoint, w: Windows, include_padding: bool, output_dtype: np.dtype
) -> jax.Array:
    total = pooling.sums(affine.difference(input), w)
    if include_padding:
        count = jnp.int32(math.prod(w.sizes))
    else:
        count = pooling.sums(jnp.ones((1, 1, *input.values.shape[2:]), jnp.int32), w)
    return pooling.quantized_average(total, count, input.scale, output, output_dtype)


@explain_array_errors
def quantized_linear_average_pool(
    input: ArrayLike,
    /,
    input_scale: ArrayLike,
    input_zero_point: ArrayLike | None,
    output_scale: ArrayLike,
    output_zero_point: ArrayLike | None = None,
    *,
    window_sizes: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    padding: Padding = "VALID",
    include_padding: bool = False,
    output_dtype: DTypeLike | str | None = None,
    feature_level: FeatureLevel | str | None = None,
) -> jax.Array:
    """Averages a quantized tensor over windows that slide over its spatial dimensions, and quantizes the averages.

    ``output = saturate(round(sum(input - input_zero_point) * input_scale / count / output_scale) + output_zero_point)``

    The specification averages the real numbers, and does not mention rounding. Here the sum of the integers is exact
    (modulo 2**32, for windows of more than 8,421,504 elements). The sum, the product and the two quotients are each rounded
    once to float32, and the last quotient then to the nearest integer, ties to even, *before* the zero point is added.
    (onnxruntime's ``QLinearAveragePool`` sums float32 numbers, whose roundings decide ties otherwise.) NaN, which a scale of
    0, infinity or NaN can produce and a window of padding alone does (without `include_padding`), gives 0.

    The result is an integer array and has no derivative (JAX's zero, of type float0).

    Args:
      input: int8 or uint8, of shape (N, C, H, W) or (N, C, D, H, W); ``jnp.moveaxis(x, -1, 1)`` converts from channels
        last.
      input_scale, output_scale: float32: one element, or one for each channel in shape (1, C, 1, 1) or (1, C, 1, 1, 1). A
        scale of 0 is undefined in the specification; here the arithmetic follows IEEE 754, and infinities saturate.
      input_zero_point: of the dtype of `input`, in any shape that `input_scale` could have. None means 0.
      output_zero_point: of the dtype of the output, likewise.
      window_sizes: the size of a window in each spatial dimension.
      strides: the step from one window to the next. None means 1 everywhere.
      dilations: the step from one element of a window to the next. None means 1 everywhere.
      padding: as for `convolution_integer`. The padding consists of real zeros.
      include_padding: whether the padding counts, as zeros; otherwise only the input's elements are averaged.
      output_dtype: int8 or uint8. None: the dtype of `output_zero_point` if that is an array, else that of `input`.
      feature_level: the DirectML feature level whose table applies; the operator exists from 6_2 on.

    Returns:
      An array of `output_dtype` and of shape (N, C, ...), with the number of windows in each spatial dimension.

    Raises:
      DescriptorError: a rank, size or level outside of the table, windows that are larger than the tensor with its padding,
        or a scalar that its type cannot hold.
      DescriptorTypeError: a data type outside of the table, or an `output_dtype` that is not that of `output_zero_point`.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([[[[1, 2, 3], [5, 6, 7]]]], jnp.uint8)
      >>> jquant.quantized_linear_average_pool(x, 0.5, 1, 0.25, 0, window_sizes=(2, 2), padding="SAME")
      Array([[[[ 5,  7,  8],
               [ 9, 11, 12]]]], dtype=uint8)

    References:
      DirectML, `DML_QUANTIZED_LINEAR_AVERAGE_POOLING_OPERATOR_DESC`. onnxruntime, `com.microsoft.QLinearAveragePool`.
    """
    call = Call(_DESCRIPTOR, feature_level)
    include_padding = boolean(_OPERATOR, "include_padding", include_padding)
    tensor = call.quantized("Input", input, input_scale, input_zero_point)
    shape = tensor.values.shape
    output, output_dtype = call.output("Output", output_scale, output_zero_point, output_dtype, default=tensor.values.dtype)
    check_rank(_DESCRIPTOR, call.level, "InputTensor", shape)
    window_sizes = positive_integers(_OPERATOR, "window_sizes", window_sizes, len(shape[2:]))
    w = windows(_OPERATOR, shape[2:], window_sizes, strides, dilations, padding, others=shape[:2])
    call.check((*shape[:2], *w.counts(shape[2:])), output_dtype)
    return _quantized_linear_average_pool(tensor, output, w, include_padding, output_dtype)
