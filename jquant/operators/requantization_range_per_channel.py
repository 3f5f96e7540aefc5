"""TensorFlow's RequantizationRangePerChannel"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jquant.arguments.naming import Operator
from jquant.arguments.operands import optional_scalar
from jquant.arguments.ranges import accumulators
from jquant.arithmetic import exact
from jquant.formulas import ranges
from jquant.lowering.formula import formula
from jquant.placement import explain_array_errors
from jquant.results import RangeOutput

_OPERATOR = Operator("requantization_range_per_channel", "RequantizationRangePerChannel")
_LEAST = np.finfo(np.float32).tiny


@formula("requantization_range_per_channel")
def _requantization_range_per_channel(
    input: jax.Array, input_min: jax.Array, input_max: jax.Array, clip_value_max: jax.Array | None
) -> RangeOutput:
    largest = jnp.max(lax.abs(input.astype(jnp.float32)), range(input.ndim - 1), initial=0)
    magnitude = ranges.magnitude(exact.widen(input_min), exact.widen(input_max))
    each = exact.product(magnitude, largest) * 2.0**-31
    output_max = jnp.max(ranges.maximum(jnp.float32(_LEAST), each), initial=_LEAST)
    if clip_value_max is not None:
        output_max = ranges.minimum(output_max, exact.widen(clip_value_max))
    return RangeOutput(jnp.where(jnp.any(input < 0), -output_max, jnp.float32(0)), output_max)


@explain_array_errors
def requantization_range_per_channel(
    input: ArrayLike, /, input_min: ArrayLike, input_max: ArrayLike, *, clip_value_max: ArrayLike | None = None
) -> RangeOutput:
    """Finds the range of the integers that occur, for `requantize_per_channel`, as TensorFlow's kernel does, bit for bit.

    ``output_max = min(clip_value_max, max_c(magnitude[c] * max(abs(input[..., c])) / 2**31))``, in float32, with
    ``magnitude = max(abs(input_min), abs(input_max))``; ``output_min = -output_max``, or 0 if no integer is negative

    `output_max` is at least the smallest normal float32, unless `clip_value_max` is less. A channel whose magnitude
    is NaN is ignored, and so is a NaN in `clip_value_max`. TensorFlow ignores integers whose absolute value
    rounds to 2**31 in float32; here they count as 2**31.

    The derivative is that of the formula: that of the channel that has the maximum, if it is not clipped.

    On a mesh the maximum is that of the whole array; inside `jax.shard_map`, that of the shard.

    Args:
      input: int32 (TensorFlow's qint32) of rank 1 or more, the channels last (TensorFlow: rank 4, not empty).
      input_min, input_max: float32, of shape ``(input.shape[-1],)``.
      clip_value_max: float32, one element in any shape: the largest value that an activation allows, such as 6 for relu6.
        None: no limit.

    Returns:
      `RangeOutput`: `output_min` and `output_max`, float32, of shape ().

    Raises:
      DescriptorError: a shape that is not defined, or ``input_max < input_min`` in Python or NumPy values. A
        `jax.Array` is not read back for that.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([[-(2**29), 2**28], [2**30, 0]], jnp.int32)
      >>> low, high = jquant.requantization_range_per_channel(x, jnp.array([-1.0, -6.0]), jnp.array([1.0, 6.0]))
      >>> print(low, high)
      -0.75 0.75

    References:
      TensorFlow, `tf.raw_ops.RequantizationRangePerChannel` (its kernel for x86).
    """
    operands = accumulators(_OPERATOR, input, input_min, input_max, per_channel=True)
    clip = optional_scalar(_OPERATOR, "clip_value_max", clip_value_max)
    return _requantization_range_per_channel(*operands, clip)
