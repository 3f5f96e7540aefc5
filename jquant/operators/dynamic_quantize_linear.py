"""DML_DYNAMIC_QUANTIZE_LINEAR"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Signature, Tensor
from jquant.arguments.naming import Operator, message
from jquant.arguments.operands import FLOAT32, boolean_operand
from jquant.arguments.statics import boolean, dimensions
from jquant.arithmetic.broadcasting import broadcasts
from jquant.errors import shown
from jquant.kernels import dynamic_quantization
from jquant.lowering.formula import formula
from jquant.modes import FeatureLevel, data_type
from jquant.placement import explain_array_errors
from jquant.results import DynamicQuantizeOutput

_OPERATOR = Operator("dynamic_quantize_linear", "DML_DYNAMIC_QUANTIZE_LINEAR")
_DESCRIPTOR = Descriptor(
    _OPERATOR,
    {
        "4_0": (
            Tensor("InputTensor", "Input", (1, 8), "FLOAT32 FLOAT16"),
            Tensor("OutputTensor", "Output", (1, 8), "INT8 UINT8"),
            Tensor("OutputScaleTensor", "Output", (1, 8), "FLOAT32"),
            Tensor("OutputZeroPointTensor", "Output", (1, 8), "INT8 UINT8"),
        ),
    },
    same_data_type=(("OutputTensor", "OutputZeroPointTensor"),),
    one_element=("OutputScaleTensor", "OutputZeroPointTensor"),
)


@formula("dynamic_quantize_linear", static=("axes", "symmetric", "dtype"))
def _dynamic_quantize_linear(
    input: jax.Array, where: jax.Array | None, axes: tuple[int, ...] | None, symmetric: bool, dtype: np.dtype
) -> DynamicQuantizeOutput:
    return dynamic_quantization.quantize(input, where, axes, symmetric, dtype)


@explain_array_errors
def dynamic_quantize_linear(
    input: ArrayLike,
    /,
    *,
    axis: int | Sequence[int] | None = None,
    symmetric: bool = False,
    output_dtype: DTypeLike | str = jnp.uint8,
    where: ArrayLike | None = None,
    feature_level: FeatureLevel | str | None = None,
) -> DynamicQuantizeOutput:
    """Quantizes a tensor by the range of its own values, extended to include zero.

    With ``[low, high] = [min(0, min(input)), max(0, max(input))]`` and `T` the output type,
    ``scale = (high - low) / 255``, or 1 if that is 0; ``zero_point = saturate(round(min(T) - low / scale))``;
    ``output = saturate(round(input / scale) + zero_point)``

    Each step is rounded once in float32, ties to even; the zero point is added after the rounding. int8 uses all of -128 to
    127, as in DirectML; ONNX, which has no int8 so far, mentions -127. DirectML's specification does not say that zero is
    included; ONNX's does.

    With `axis`, elements that differ only in those dimensions share a range, as in ``jnp.max(input, axis, keepdims=True)``:
    for activations of shape (batch, tokens, features), ``axis=-1`` gives each token its own range. This is not the `axis`
    of `quantize_linear`, the one dimension along which scales lie: here the scales lie along all the others.

    With `symmetric`, ``scale = max(abs(input)) / 127``, and the zero point is 0 in int8 and 128 in uint8:
    ``scale_and_zero_point(low, high, output_dtype, symmetric=True, narrow_range=True)``. The integers are then within 127 of
    the zero point, except for those of masked elements, which saturate at the limits of the type.

    Zeros, and an empty array, have scale 1 and the zero point ``min(T)``. A NaN makes the scale NaN, and the integers and
    the zero point 0. If the range is infinite, or too wide for float32, the scale is infinite: finite values become the zero
    point, infinite ones 0; with -inf, the zero point is 0. With `axis`, each of these affects only its own range, and a
    range whose scale is below the normal float32 numbers counts as one of zeros. With `symmetric`, the zero point is 0 in
    uint8, too, if there is a NaN, or if the range is one of zeros or that narrow; an infinity, or a range too wide for
    float32, makes the scale infinite: finite values become the zero point, infinite ones 0.

    On a mesh that splits the input, each device contributes one number to the maximum and one to the minimum of each range;
    nothing is communicated where the mesh splits no dimension of `axis`. Inside `jax.shard_map`, each shard has ranges of
    its own.

    The output and the zero point are integers and have no derivative (JAX's zero, of type float0). The scale has the
    derivative of the range: that of the largest and of the smallest value or, if symmetric, that of the one farther from 0
    (equal ones share it).

    Args:
      input: float32 or float16 (bfloat16 at ``FeatureLevel.EXTENDED``), of rank 1 to 8, or a scalar.
      axis: the dimension, or a tuple of the dimensions, whose elements share a range; a negative one counts from the end.
        None, as in the specifications: one range for all. Any other `axis` needs ``FeatureLevel.EXTENDED``: no level
        of DirectML has it.
      symmetric: whether the range is the same on both sides of 0; this needs ``FeatureLevel.EXTENDED``.
      output_dtype: uint8 or int8.
      where: booleans, of the rank of `input`, where dimensions of size 1 broadcast, or a single one. Elements where it is
        false do not count toward the range, as padding should not; they are quantized all the same. None or True: all count.
      feature_level: the DirectML feature level whose table applies; the operator exists from 4_0 on.

    Returns:
      `DynamicQuantizeOutput`: `output` has the shape of `input` and `output_dtype`; `scale`, float32, and `zero_point`, of
      `output_dtype`, have shape (), as in ONNX. With `axis`, they have the shape of `input` with size 1 along `axis`.
      `quantize_linear` and `dequantize_linear` take them in that shape, as does `matmul_integer_to_float` for one matrix;
      map it over a batch of matrices, or reshape the batch to one matrix.

    Raises:
      DescriptorError: a rank or level outside of the table; an axis that the input does not have, or that is given twice;
        `axis` or `symmetric` below ``FeatureLevel.EXTENDED``.
      DescriptorTypeError: a data type outside of the table; an axis that is not an integer.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> output, scale, zero_point = jquant.dynamic_quantize_linear(jnp.array([-1.0, 0.0, 0.25, 1.55]))
      >>> print(output, scale, zero_point)
      [  0 100 125 255] 0.01 100
      >>> tokens = jnp.array([[-1.0, 1.55], [9.0, 9.0]])  # the second one is padding
      >>> output, scale, zero_point = jquant.dynamic_quantize_linear(tokens, where=jnp.array([[True], [False]]))
      >>> print(*output, scale, zero_point)
      [  0 255] [255 255] 0.01 100
      >>> by_row = {"axis": -1, "symmetric": True, "output_dtype": "INT8", "feature_level": "EXTENDED"}
      >>> x, x_scale, x_zero_point = jquant.dynamic_quantize_linear(jnp.array([[-1.27, 0.5], [2.54, 0.5]]), **by_row)
      >>> print(*x, *x_scale, *x_zero_point)
      [-127   50] [127  25] [0.01] [0.02] [0] [0]
      >>> w = jnp.array([[1], [2]], jnp.int8)
      >>> print(*jquant.matmul_integer_to_float(x, x_scale, x_zero_point, w, 1.0))
      [-0.26999998] [3.54]

    References:
      DirectML, `DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC`. ONNX, `DynamicQuantizeLinear`.
    """
    call = Call(_DESCRIPTOR, feature_level)
    input, dtype = call.tensor("InputTensor", input, FLOAT32), data_type("output_dtype", output_dtype)
    symmetric = boolean(_OPERATOR, "symmetric", symmetric)
    where = None if where is None else boolean_operand(_OPERATOR, "where", where)
    outputs = {"OutputScaleTensor": Signature((), FLOAT32), "OutputZeroPointTensor": Signature((), dtype)}
    call.check(input.shape, dtype, **outputs)
    _require_defaults(call.level, "None" if axis is None else shown(axis), symmetric)
    axes = None if axis is None else dimensions(_OPERATOR, axis, input.ndim)
    if where is not None:
        _require_mask(where.shape, input.shape)
    return _dynamic_quantize_linear(input, where, axes, symmetric, dtype)


@once_for_each_signature
def _require_defaults(level: FeatureLevel | None, axis: str, symmetric: bool) -> None:
    """Asserts that the arguments of jquant's own have their defaults at the levels of DirectML."""
    for name, value, default in (("axis", axis, "None"), ("symmetric", str(symmetric), "False")):
        is_allowed = level == FeatureLevel.EXTENDED or value == default
        text = f"is {value}; it must be {default} below FeatureLevel.EXTENDED"
        require(is_allowed, message(_OPERATOR, name, text))


@once_for_each_signature
def _require_mask(where: tuple[int, ...], input: tuple[int, ...]) -> None:
    """Asserts that the mask broadcasts to the input, in the same rank."""
    wanted = "the dimension counts must be the same, and each size must be 1 or that of the input"
    text = f"has shape {where}, input has {input}: {wanted} (where[..., None] adds a dimension)"
    require(len(where) == 0 or broadcasts(where, input), message(_OPERATOR, "where", text))
