"""TensorFlow's FakeQuantWithMinMaxVars and FakeQuantWithMinMaxVarsPerChannel"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jquant.arguments.naming import Operator
from jquant.arguments.operands import float_operand
from jquant.arguments.ranges import range_operands
from jquant.arguments.statics import boolean, integer
from jquant.arithmetic import exact, rounding
from jquant.arithmetic.broadcasting import shape_along
from jquant.arithmetic.straight_through import straight_through
from jquant.formulas import ranges
from jquant.lowering import materialize
from jquant.lowering.formula import formula
from jquant.placement import explain_array_errors

_OPERATOR = Operator("fake_quantize", "FakeQuantWithMinMaxVars")


class _Range(NamedTuple):
    """A range that has 0 as one of its steps, and the size of a step."""

    low: jax.Array
    high: jax.Array
    scale: jax.Array
    inverse_scale: jax.Array


def _nudged(low: jax.Array, high: jax.Array, num_bits: int, narrow_range: bool) -> _Range:
    smallest, largest = jnp.float32(narrow_range), jnp.float32(2**num_bits - 1)
    width = exact.difference(high, low)
    scale = exact.quotient(width, largest - smallest)
    inverse_scale = exact.quotient(largest - smallest, width)
    zero_point = exact.difference(smallest, exact.quotient(low, scale))
    zero_point = ranges.clamp(rounding.round_half_away(zero_point), smallest, largest)
    nudged_low, nudged_high = (exact.product(exact.difference(x, zero_point), scale) for x in (smallest, largest))
    return _Range(nudged_low, nudged_high, scale, inverse_scale)


@formula("fake_quantize", static=("num_bits", "narrow_range", "axis"))
def _fake_quantize(
    input: jax.Array, min: jax.Array, max: jax.Array, num_bits: int, narrow_range: bool, axis: int | None
) -> jax.Array:
    shape = shape_along(axis, input.ndim)
    operands = exact.widen(input), exact.widen(min).reshape(shape), exact.widen(max).reshape(shape)
    x, low, high = map(lax.stop_gradient, operands)
    nudged = _nudged(low, high, num_bits, narrow_range)
    zero = rounding.round_half_up(exact.product(-nudged.low, nudged.inverse_scale))
    is_empty = ((low == 0) & (high == 0)).astype(jnp.int32)
    nudged, zero, is_empty = jax.tree.map(materialize.once, (nudged, zero, is_empty))

    offset = ranges.clamp(x, nudged.low, nudged.high) - nudged.low
    # TensorFlow divides by a single scale, but multiplies by the reciprocals of several.
    steps = exact.quotient(offset, nudged.scale) if axis is None else exact.product(offset, nudged.inverse_scale)
    value = exact.product(rounding.round_half_up(exact.difference(steps, zero)), nudged.scale)

    empty = is_empty == 1
    surrogate = jnp.where(x < nudged.low, operands[1], jnp.where(x > nudged.high, operands[2], x))
    surrogate = jnp.where((x >= nudged.low) & (x <= nudged.high) | empty, operands[0], surrogate)
    return straight_through(jnp.where(empty, jnp.float32(0), value), surrogate)


@explain_array_errors
def fake_quantize(
    input: ArrayLike,
    /,
    min: ArrayLike,
    max: ArrayLike,
    *,
    num_bits: int = 8,
    narrow_range: bool = False,
    axis: int | None = None,
) -> jax.Array:
    """Rounds to the ``2 ** num_bits`` steps of a range, as TensorFlow's CPU kernels do, bit for bit.

    ``f(x) = floor((clamp(x) - nudged_min) / scale - zero + 1/2) * scale``, with a derivative for training

    ``scale = (max - min) / (2 ** num_bits - 1)``. The range is first nudged, by half a step at most, so that real 0 is
    one of its steps, the one numbered `zero`; a range that does not hold 0 is shifted to begin or end there. With
    `axis`, ``* ((2 ** num_bits - 1) / (max - min))`` replaces ``/ scale``, as in TensorFlow, which makes a difference
    next to ties. Ties are rounded up. The arithmetic is in float32, where a number next to a tie may become one.

    The derivative is the straight-through estimate, also for the range, which can be learned: that of `input` where
    ``nudged_min <= input <= nudged_max``, that of `min` below and of `max` above; 0 for a NaN. A derivative of 0 stays 0
    even if it meets an infinite or NaN cotangent (TensorFlow multiplies, and gives NaN).

    A NaN stays NaN. If `min` and `max` are both 0, the result is 0, even for a NaN, and the derivative is that of `input`.
    If they are equal but not 0, the result is NaN.

    Args:
      input: float32, any shape.
      min, max: float32: one element in any shape or, with `axis`, of shape ``(input.shape[axis],)``. Infinite
        bounds are not specified.
      num_bits: 2 to 16.
      narrow_range: whether to leave out the lowest integer, for one step less.
      axis: the dimension along which each slice has a range of its own, counted from 0 (in TensorFlow it is the
        last); None for one range. Negative numbers raise.

    Returns:
      float32, of the shape of `input`.

    Raises:
      DescriptorError: a shape, axis or number of bits that is not defined, or ``max < min`` in Python or NumPy values. A
        `jax.Array` is not read back for that.
      DescriptorTypeError: a data type other than float32.

    Example:
      >>> import jax, jax.numpy as jnp, jquant
      >>> x = jnp.array([-2.0, -0.3, 0.3, 0.9, 5.0])
      >>> jquant.fake_quantize(x, -1, 2, num_bits=2)
      Array([-1.,  0.,  0.,  1.,  2.], dtype=float32)
      >>> jax.grad(lambda range: jquant.fake_quantize(x, *range, num_bits=2).sum())(jnp.array([-1.0, 2.0]))
      Array([1., 1.], dtype=float32)

    References:
      TensorFlow, `tf.raw_ops.FakeQuantWithMinMaxVars`, `tf.raw_ops.FakeQuantWithMinMaxVarsPerChannel` and their
      gradients (the CPU kernels).
    """
    input = float_operand(_OPERATOR, "input", input)
    min, max = range_operands(_OPERATOR, input, axis, min=min, max=max)
    num_bits = integer(_OPERATOR, "num_bits", num_bits, range(2, 17), "from 2 to 16")
    return _fake_quantize(input, min, max, num_bits, boolean(_OPERATOR, "narrow_range", narrow_range), axis)
