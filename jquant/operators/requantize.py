"""TensorFlow's Requantize"""

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.naming import Operator, message
from jquant.arguments.operands import Operand, is_known
from jquant.arguments.ranges import accumulators, range_operands, require_quantized
from jquant.arithmetic import exact
from jquant.formulas import requantization
from jquant.lowering.formula import formula
from jquant.modes import data_type
from jquant.placement import explain_array_errors
from jquant.results import QuantizeOutput

_OPERATOR = Operator("requantize", "Requantize")


@formula("requantize", static=("dtype",))
def _requantize(
    input: jax.Array,
    input_min: jax.Array,
    input_max: jax.Array,
    requested_output_min: jax.Array,
    requested_output_max: jax.Array,
    dtype: np.dtype,
) -> QuantizeOutput:
    bounds = input_min, input_max, requested_output_min, requested_output_max
    low, high, new_low, new_high = (exact.widen(bound).reshape(()) for bound in bounds)
    return QuantizeOutput(requantization.in_range(input, low, high, new_low, new_high, dtype), new_low, new_high)


@explain_array_errors
def requantize(
    input: ArrayLike,
    /,
    input_min: ArrayLike,
    input_max: ArrayLike,
    requested_output_min: ArrayLike,
    requested_output_max: ArrayLike,
    *,
    dtype: DTypeLike | str,
) -> QuantizeOutput:
    """Converts 32-bit integers to 8 bits and another range, as TensorFlow's CPU kernels do, bit for bit.

    It takes ranges, not scales and zero points. For the sums of `matmul_integer` or `convolution_integer`, call
    `quantize_linear` with ``output_scale / (a_scale * b_scale)`` as the scale, and the output's zero point; or call
    `quantized_linear_matmul` or `quantized_linear_convolution`, which multiply and requantize in one pass.

    The integers of each range are those of `quantize` in MIN_FIRST: the lowest one stands for the lower end of the range,
    the highest for its upper end. The arithmetic differs by type, as in TensorFlow:

    - quint8, in fixed point, with all quotients in float64 and truncated:
      ``clamp((((input * scale) >> 32) + input_offset - output_offset + 2**15) >> 16)`` with
      ``scale = 255 * 2**16 * (input_max - input_min) / width``, where `width` is that of the requested range,
      ``input_offset = 2**16 * (input_min + input_max) / 2 * (255 / width)`` in float32 and
      ``output_offset = 255 * 2**16 * requested_output_min / width``, rounded half away from zero. A width of 0 gives 0.
    - qint8, in float32: `dequantize` and then the formula of `quantize`, both in MIN_FIRST.

    `input` is first rounded to float32, of 24 bits, as in TensorFlow. Real numbers beyond the requested range saturate. (In
    TensorFlow, those of 128 times its width or more wrap in quint8.)

    `output` is an integer array and has no derivative. The range of the output is the requested one, with its derivative.

    Args:
      input: int32 (TensorFlow's qint32), any shape.
      input_min, input_max, requested_output_min, requested_output_max: float32, one element in any shape. Not
        specified: infinite bounds, and an input range whose width or bound exceeds the requested width ``2**38``-fold.
      dtype: "quint8" or "qint8", or the plain dtype that stores it.

    Returns:
      `QuantizeOutput`: `output` has the shape of `input`; `output_min` and `output_max` are the requested ones, in
      shape ().

    Raises:
      DescriptorError: a range of more than one element or, in Python or NumPy values, a maximum less than its minimum,
        or ``requested_output_min > 0``. A `jax.Array` is not read back for that.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([-(2**31), -(2**29), 0, 2**29, 2**31 - 1], jnp.int32)
      >>> jquant.requantize(x, -2, 2, -1, 1, dtype="quint8").output
      Array([  0,  64, 128, 191, 255], dtype=uint8)

    References:
      TensorFlow, `tf.raw_ops.Requantize` (its CPU kernels).
    """
    dtype = data_type("dtype", dtype)
    require_quantized(_OPERATOR, "dtype", dtype, "quint8", "qint8")
    input, low, high = accumulators(_OPERATOR, input, input_min, input_max)
    new_low, new_high = range_operands(
        _OPERATOR, input, None, requested_output_min=requested_output_min, requested_output_max=requested_output_max
    )
    if is_known(new_low):
        _require_no_positive(new_low)
    return _requantize(input, low, high, new_low, new_high, dtype)


@once_for_each_signature
def _require_no_positive(low: Operand) -> None:
    require(np.all(low <= 0), message(_OPERATOR, "requested_output_min", f"is {low}; it must be 0 or less"))
