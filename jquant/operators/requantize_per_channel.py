"""TensorFlow's RequantizePerChannel"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.naming import Operator, message
from jquant.arguments.operands import Operand, is_known
from jquant.arguments.ranges import accumulators, range_operands, require_quantized
from jquant.arithmetic import exact, rounding
from jquant.arithmetic.broadcasting import shape_along
from jquant.formulas import ranges
from jquant.lowering.formula import formula
from jquant.modes import data_type
from jquant.placement import explain_array_errors
from jquant.results import QuantizeOutput

_OPERATOR = Operator("requantize_per_channel", "RequantizePerChannel")


@formula("requantize_per_channel", static=("dtype",))
def _requantize_per_channel(
    input: jax.Array,
    input_min: jax.Array,
    input_max: jax.Array,
    requested_output_min: jax.Array,
    requested_output_max: jax.Array,
    dtype: np.dtype,
) -> QuantizeOutput:
    new_low, new_high = (exact.widen(bound).reshape(()) for bound in (requested_output_min, requested_output_max))
    largest = ranges.magnitude(exact.widen(input_min), exact.widen(input_max))
    ratio = exact.quotient(largest, ranges.magnitude(new_low, new_high)) * 2.0**-31
    scale = exact.product(jnp.float32(jnp.iinfo(dtype).max), ratio).reshape(shape_along(input.ndim - 1, input.ndim))
    return QuantizeOutput(rounding.nearest_integer(input.astype(jnp.float32) * scale, None, dtype), new_low, new_high)


@explain_array_errors
def requantize_per_channel(
    input: ArrayLike,
    /,
    input_min: ArrayLike,
    input_max: ArrayLike,
    requested_output_min: ArrayLike,
    requested_output_max: ArrayLike,
    *,
    dtype: DTypeLike | str = "quint8",
) -> QuantizeOutput:
    """Converts 32-bit integers, with a range per channel, to 8 bits and one range, as TensorFlow's kernel does, bit for bit.

    ``saturate(round(input * (max(T) * (input_magnitude / requested_magnitude / 2**31))))``, where the magnitude of a range
    is the larger of ``abs(min)`` and ``abs(max)``, in float32; ties to even

    Unlike those of `requantize`, the ranges are symmetric: integer 0 is real 0, and ``max(T)`` stands for the magnitude. In
    quint8, negative numbers become 0. NaN, which only a requested magnitude of 0 produces, gives 0.

    `output` is an integer array and has no derivative. The range of the output is the requested one, with its derivative.

    Args:
      input: int32 (TensorFlow's qint32) of rank 1 or more, the channels last (TensorFlow: rank 4).
      input_min, input_max: float32, of shape ``(input.shape[-1],)``.
      requested_output_min, requested_output_max: float32, one element in any shape. Infinite bounds are not specified.
      dtype: "quint8" or "qint8", or the plain dtype that stores it.

    Returns:
      `QuantizeOutput`: `output` has the shape of `input`; `output_min` and `output_max` are the requested ones, in
      shape ().

    Raises:
      DescriptorError: a shape that is not defined or, in Python or NumPy values, a maximum less than its minimum, or
        ``requested_output_min >= 0`` for qint8. A `jax.Array` is not read back for that.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([[-(2**30), -(2**30)], [2**30, 2**30]], jnp.int32)
      >>> low, high = jnp.array([-1.0, -2.0]), jnp.array([1.0, 2.0])
      >>> jquant.requantize_per_channel(x, low, high, -1.5, 1.5, dtype="qint8").output
      Array([[-42, -85],
             [ 42,  85]], dtype=int8)

    References:
      TensorFlow, `tf.raw_ops.RequantizePerChannel` (its kernel for x86, which calls oneDNN).
    """
    dtype = data_type("dtype", dtype)
    require_quantized(_OPERATOR, "dtype", dtype, "quint8", "qint8")
    input, low, high = accumulators(_OPERATOR, input, input_min, input_max, per_channel=True)
    new_low, new_high = range_operands(
        _OPERATOR, input, None, requested_output_min=requested_output_min, requested_output_max=requested_output_max
    )
    if dtype == jnp.int8 and is_known(new_low):
        _require_negative(new_low)
    return _requantize_per_channel(input, low, high, new_low, new_high, dtype)


@once_for_each_signature
def _require_negative(low: Operand) -> None:
    text = f"is {low}; for out_type INT8 it must be less than 0"
    require(np.all(low < 0), message(_OPERATOR, "requested_output_min", text))
