"""TensorFlow's QuantizeDownAndShrinkRange"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jquant.arguments.naming import Operator
from jquant.arguments.ranges import accumulators
from jquant.arithmetic import exact
from jquant.formulas import requantization
from jquant.formulas.requantization_range import actual_range
from jquant.lowering.formula import formula
from jquant.placement import explain_array_errors
from jquant.results import QuantizeOutput

_OPERATOR = Operator("quantize_down_and_shrink_range", "QuantizeDownAndShrinkRange")


@formula("quantize_down_and_shrink_range")
def _quantize_down_and_shrink_range(input: jax.Array, input_min: jax.Array, input_max: jax.Array) -> QuantizeOutput:
    low, high = (exact.widen(bound).reshape(()) for bound in (input_min, input_max))
    new_low, new_high = actual_range(input, low, high)
    output = requantization.in_range(input, low, high, new_low, new_high, jnp.dtype(jnp.uint8))
    return QuantizeOutput(output, new_low, new_high)


@explain_array_errors
def quantize_down_and_shrink_range(input: ArrayLike, /, input_min: ArrayLike, input_max: ArrayLike) -> QuantizeOutput:
    """Converts 32-bit integers to uint8, with the range of those that occur, as TensorFlow's CPU kernel does, bit for bit.

    This is `requantization_range`, then `requantize` to that range, with their formulas, roundings and derivatives. If no
    integer stands for more than the minimum of the range, all become 0.

    On a mesh the range is that of the whole array; inside `jax.shard_map`, that of the shard.

    Args:
      input: int32 (TensorFlow's qint32), any shape.
      input_min, input_max: float32, one element in any shape. Infinite bounds are not specified.

    Returns:
      `QuantizeOutput`: `output`, uint8 (quint8), has the shape of `input`; `output_min` and `output_max`, float32, are of
      shape ().

    Raises:
      DescriptorError: a range of more than one element, or ``input_max < input_min`` in Python or NumPy values. A
        `jax.Array` is not read back for that.
      DescriptorTypeError: a data type other than int32 for `input`, or float32 for its range.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([-(2**29), 0, 2**30], jnp.int32)
      >>> output, output_min, output_max = jquant.quantize_down_and_shrink_range(x, -2, 2)
      >>> print(output, output_min, output_max)
      [  0  85 255] -0.5 1.0

    References:
      TensorFlow, `tf.raw_ops.QuantizeDownAndShrinkRange` (its CPU kernel).
    """
    return _quantize_down_and_shrink_range(*accumulators(_OPERATOR, input, input_min, input_max))
