"""DML_DYNAMIC_QUANTIZE_LINEAR"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.call import Call
from jquant.arguments.descriptor import Descriptor, Signature, Tensor, require
from jquant.arguments.operands import FLOAT32, Operand, operand
from jquant.arithmetic import exact
from jquant.arithmetic.broadcasting import broadcasts
from jquant.errors import DescriptorTypeError
from jquant.formulas import affine
from jquant.formulas.extremes import range_with_zero
from jquant.modes import FeatureLevel, data_type, data_type_name
from jquant.pytrees import DynamicQuantizeOutput, ScaleZeroPoint

_OPERATOR = "DML_DYNAMIC_QUANTIZE_LINEAR"
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


@functools.partial(jax.jit, static_argnames="dtype")
@jax.named_scope("dynamic_quantize_linear")
def _dynamic_quantize_linear(input: jax.Array, where: jax.Array | None, dtype: np.dtype) -> DynamicQuantizeOutput:
    limits = jnp.iinfo(dtype)
    x = exact.numerator(input)
    low, high = range_with_zero(x if where is None else jnp.where(where, x, jnp.zeros_like(x)))
    width = exact.difference(high, low)
    scale = jnp.where(width == 0, jnp.float32(1), exact.quotient(width, jnp.float32(limits.max - limits.min)))
    zero_point = exact.nearest_integer(exact.difference(jnp.float32(limits.min), exact.quotient(low, scale)), None, dtype)
    return DynamicQuantizeOutput(affine.quantize(x, ScaleZeroPoint(scale, zero_point), dtype), scale, zero_point)


def dynamic_quantize_linear(
    input: ArrayLike,
    /,
    *,
    output_dtype: DTypeLike | str = jnp.uint8,
    where: ArrayLike | None = None,
    feature_level: FeatureLevel | str | None = None,
) -> DynamicQuantizeOutput:
    """Quantizes by the range of the values, zero included.

    With ``[low, high] = [min(0, min(input)), max(0, max(input))]`` and `T` the output type,
    ``scale = (high - low) / 255``, or 1 if that is 0; ``zero_point = saturate(round(min(T) - low / scale))``;
    ``output = saturate(round(input / scale) + zero_point)``

    Each step is rounded once in float32, ties to even; the zero point is added after the rounding. int8 has the whole of
    -128 to 127, as in DirectML; ONNX, which has no int8 so far, mentions -127. DirectML's document does not say that zero is
    included; ONNX's does.

    Zeros, and an empty array, have scale 1 and the zero point ``min(T)``. A NaN makes the scale NaN and the rest 0.
    Where the range is infinite, or wider than float32 goes, so is the scale: finite values become the zero point, infinite
    ones 0; with -inf, the zero point is 0.

    On a mesh that splits the input, one number of each device is reduced for the maximum and one for the minimum; inside
    `jax.shard_map`, each shard has a range of its own.

    The output and the zero point are integers, which have no derivative: JAX's zero, of type float0. The scale has that of
    the range: of the largest and of the smallest value.

    Args:
      input: float32 or float16 (bfloat16 at ``FeatureLevel.EXTENDED``), of rank 1 to 8, or a scalar.
      output_dtype: uint8 or int8.
      where: booleans, of the rank of `input`, where sizes of 1 broadcast. Elements where it is false do not count in the
        range, as padding should not; they are quantized all the same. None: all count.
      feature_level: the DirectML feature level whose table applies; the operator exists from 4_0 on.

    Returns:
      `DynamicQuantizeOutput`: `output` has the shape of `input` and `output_dtype`; `scale`, float32, and `zero_point`, of
      `output_dtype`, have shape (), as in ONNX.

    Raises:
      DescriptorError: a rank or level outside of the table.
      DescriptorTypeError: a data type outside of the table.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> output, scale, zero_point = jquant.dynamic_quantize_linear(jnp.array([-1.0, 0.0, 0.25, 1.55]))
      >>> print(output, scale, zero_point)
      [  0 100 125 255] 0.01 100
      >>> tokens = jnp.array([[-1.0, 1.55], [9.0, 9.0]])  # the second one is padding
      >>> output, scale, zero_point = jquant.dynamic_quantize_linear(tokens, where=jnp.array([[True], [False]]))
      >>> print(*output, scale, zero_point)
      [  0 255] [255 255] 0.01 100

    References:
      DirectML, `DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC`. ONNX, `DynamicQuantizeLinear`.
    """
    call = Call(_DESCRIPTOR, feature_level)
    input, dtype = call.tensor("InputTensor", input, FLOAT32), data_type("output_dtype", output_dtype)
    where = None if where is None else operand(_OPERATOR, "where", where)
    outputs = {"OutputScaleTensor": Signature((), FLOAT32), "OutputZeroPointTensor": Signature((), dtype)}
    call.check(input.shape, dtype, **outputs)
    if where is not None:
        _require_mask(where, input)
    return _dynamic_quantize_linear(input, where, dtype)


def _require_mask(where: Operand, input: Operand) -> None:
    """Asserts that it says of each element of the input whether it counts."""
    given = data_type_name(where.dtype)
    require(given == "BOOL", f"{_OPERATOR}: where has data type {given}; it must be BOOL", DescriptorTypeError)
    fits = where.ndim == 0 or broadcasts(where.shape, input.shape)
    message = f"{_OPERATOR}: where has sizes {where.shape}, InputTensor has {input.shape}: the dimension counts must be the"
    require(fits, f"{message} same, and each size 1 or that of the input (where[..., None] adds a dimension)")
