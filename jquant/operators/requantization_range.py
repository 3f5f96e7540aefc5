"""TensorFlow's RequantizationRange"""

import jax
from jax.typing import ArrayLike

from jquant.arguments.naming import Operator
from jquant.arguments.ranges import accumulators
from jquant.arithmetic import exact
from jquant.formulas.requantization_range import actual_range
from jquant.lowering.formula import formula
from jquant.placement import explain_array_errors
from jquant.results import RangeOutput

_OPERATOR = Operator("requantization_range", "RequantizationRange")


@formula("requantization_range")
def _requantization_range(input: jax.Array, input_min: jax.Array, input_max: jax.Array) -> RangeOutput:
    low, high = (exact.widen(bound).reshape(()) for bound in (input_min, input_max))
    return actual_range(input, low, high)


@explain_array_errors
def requantization_range(input: ArrayLike, /, input_min: ArrayLike, input_max: ArrayLike) -> RangeOutput:
    """Finds the range of the integers that occur, for `requantize`, as TensorFlow's CPU kernel does, bit for bit.

    ``output_min = min(0, real(min(input)))`` and ``output_max = real(max(input))``, where
    ``real(x) = away(input_min / scale) * scale + (x + 2**31) * scale`` with
    ``scale = (input_max - input_min) / (2**32 - 1)``

    `real` is computed in float64, except for its first product, and finally rounded to float32. The integers are rounded to
    float32 first, as in TensorFlow. The maximum may be below 0; for an empty array it is `input_min`.

    The derivative is that of the formula without its roundings.

    On a mesh the minimum and the maximum are those of the whole array; inside `jax.shard_map`, those of the shard.

    Args:
      input: int32 (TensorFlow's qint32), any shape.
      input_min, input_max: float32, one element in any shape. Infinite bounds are not specified.

    Returns:
      `RangeOutput`: `output_min` and `output_max`, float32, of shape ().

    Raises:
      DescriptorError: a range of more than one element, or ``input_max < input_min`` in Python or NumPy values. A
        `jax.Array` is not read back for that.
      DescriptorTypeError: a data type other than int32 for `input`, or float32 for its range.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([-(2**29), 0, 2**30], jnp.int32)
      >>> low, high = jquant.requantization_range(x, -2, 2)
      >>> print(low, high)
      -0.5 1.0
      >>> jquant.requantize(x, -2, 2, low, high, dtype="quint8").output
      Array([  0,  85, 255], dtype=uint8)

    References:
      TensorFlow, `tf.raw_ops.RequantizationRange` (its CPU kernel).
    """
    return _requantization_range(*accumulators(_OPERATOR, input, input_min, input_max))
