"""TensorFlow's QuantizeAndDequantizeV4"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.naming import Operator, message
from jquant.arguments.operands import float_operand
from jquant.arguments.ranges import range_operands, require_round_mode
from jquant.arguments.statics import boolean, integer
from jquant.arithmetic import exact, rounding
from jquant.arithmetic.broadcasting import shape_along
from jquant.arithmetic.straight_through import straight_through
from jquant.formulas import ranges
from jquant.lowering import materialize
from jquant.lowering.formula import formula
from jquant.modes import RoundMode, rounding_mode
from jquant.placement import explain_array_errors

_OPERATOR = Operator("quantize_and_dequantize", "QuantizeAndDequantizeV4")
_ROUND_MODES = RoundMode.HALF_TO_EVEN, RoundMode.HALF_UP
_LARGEST_NUM_BITS = {True: 61, False: 62}  # by signed_input


def _limits(signed_input: bool, num_bits: int, narrow_range: bool) -> tuple[np.float32, np.float32]:
    """The smallest and the largest integer."""
    if not signed_input:
        return np.float32(0), np.float32(2**num_bits - 1)
    half = 2 ** (num_bits - 1)
    return np.float32(narrow_range - half), np.float32(half - 1)


def _own_range(input: jax.Array, axis: int | None) -> tuple[jax.Array, jax.Array]:
    """The range of the values themselves, in shapes that broadcast."""
    others = tuple(dimension for dimension in range(input.ndim) if dimension != axis)
    keep = axis is not None
    return (
        jnp.min(input, others, keepdims=keep, initial=np.inf),
        jnp.max(input, others, keepdims=keep, initial=-np.inf),
    )


@formula("quantize_and_dequantize", static=("signed_input", "num_bits", "round_mode", "narrow_range", "axis"))
def _quantize_and_dequantize(
    input: jax.Array,
    bounds: tuple[jax.Array, jax.Array] | None,
    signed_input: bool,
    num_bits: int,
    round_mode: RoundMode,
    narrow_range: bool,
    axis: int | None,
) -> jax.Array:
    surrogate = exact.widen(input)
    x = lax.stop_gradient(surrogate)
    if bounds is None:
        low, high = _own_range(lax.stop_gradient(exact.numerator(input)), axis)
    else:
        low, high = (lax.stop_gradient(exact.widen(bound)).reshape(shape_along(axis, x.ndim)) for bound in bounds)
        surrogate = jnp.where((x >= low) & (x <= high), surrogate, x)  # the range as given, not as adjusted below

    limits = _limits(signed_input, num_bits, narrow_range)
    smallest, largest = map(jnp.float32, limits)
    low_scale, high_scale = ranges.scales(low, high, smallest, largest)
    low_decides = low_scale < high_scale
    scale = jnp.where(low_decides, low_scale, high_scale)
    inverse = exact.quotient(high, largest)
    if limits[0] != 0:  # otherwise the lower side decides nothing
        inverse = jnp.where(low_decides, exact.quotient(low, smallest), inverse)
    if bounds is not None:
        low, high = (
            jnp.where(low_decides, low, exact.product(smallest, inverse)),
            jnp.where(low_decides, exact.product(largest, inverse), high),
        )
        x = ranges.clamp(x, *map(materialize.once, (low, high)))
    scale, inverse = map(materialize.once, (scale, inverse))
    nearest = rounding.round_half_even if round_mode == RoundMode.HALF_TO_EVEN else rounding.round_half_up
    return straight_through(exact.product(nearest(exact.product(x, scale)), inverse), surrogate)


@explain_array_errors
def quantize_and_dequantize(
    input: ArrayLike,
    /,
    input_min: ArrayLike | None = None,
    input_max: ArrayLike | None = None,
    *,
    signed_input: bool = True,
    num_bits: int = 8,
    round_mode: RoundMode | str = RoundMode.HALF_TO_EVEN,
    narrow_range: bool = False,
    axis: int | None = None,
) -> jax.Array:
    """Rounds to the real numbers that `num_bits` bits can express, as TensorFlow's CPU kernel does, bit for bit.

    ``f(x) = round(clamp(x) * scale) * inverse_scale``, with a derivative for training

    The scale is the largest that keeps the range within the integers [qmin, qmax]: the smaller of ``qmin / input_min``
    and ``qmax / input_max``, of those that are positive. `inverse_scale` is the inverse quotient, rounded separately.
    Real 0 stays 0. The bound that did not decide the scale is replaced by what the integers reach on that side, so that a
    range that does not hold 0 is extended to it, and with the range [2, 4], values may be clamped to [-4.03, 4]. Without a
    range, that of the values is used, and nothing is clamped.

    The derivative is the straight-through estimate: that of `input` where ``input_min <= input <= input_max``, for
    the range as given, and 0 elsewhere and for a NaN. Without a range it is that of `input`. It is 0 for
    `input_min` and `input_max`, as in TensorFlow; to learn the range, use `fake_quantize`. A derivative of 0 stays 0 even if
    it meets an infinite or NaN cotangent (TensorFlow multiplies, and gives NaN).

    A NaN in `input` stays NaN. Without a range, it makes its whole slice NaN (in TensorFlow, this depends on its
    position in the array), and so does an infinity.

    Args:
      input: float32, any shape.
      input_min, input_max: float32: one element in any shape or, with `axis`, of shape ``(input.shape[axis],)``.
        Both, or neither.
      signed_input: whether the integers have a sign.
      num_bits: the number of bits of the integers: 1 to 61, or to 62 without a sign. (With 1 bit, a sign and
        `narrow_range`, only the integer 0 is left, and the result is NaN or infinite.)
      round_mode: "HALF_TO_EVEN", or "HALF_UP": ties toward infinity (-7.5 to -7).
      narrow_range: whether to leave the lowest integer unused; only with a sign.
      axis: the dimension along which each slice has a range of its own, counted from 0; None for one
        range. Negative numbers raise.

    Returns:
      float32, of the shape of `input`.

    Raises:
      DescriptorError: a shape, axis, number of bits or round mode that is not defined, one bound without the other,
        or ``input_max < input_min`` in Python or NumPy values. A `jax.Array` is not read back for that.
      DescriptorTypeError: a data type other than float32.

    Example:
      >>> import jax, jax.numpy as jnp, jquant
      >>> x = jnp.array([-2.0, -0.3, 0.3, 0.9, 5.0])
      >>> jquant.quantize_and_dequantize(x, -1, 0.75, num_bits=3)
      Array([-1.  , -0.25,  0.25,  0.75,  0.75], dtype=float32)
      >>> jax.grad(lambda x: jquant.quantize_and_dequantize(x, -1, 0.75, num_bits=3).sum())(x)
      Array([0., 1., 1., 0., 0.], dtype=float32)

    References:
      TensorFlow, `tf.raw_ops.QuantizeAndDequantizeV4` and `tf.raw_ops.QuantizeAndDequantizeV4Grad` (their CPU kernels).
    """
    round_mode = rounding_mode(round_mode)
    input = float_operand(_OPERATOR, "input", input)
    bounds = {"input_min": input_min, "input_max": input_max}
    bounds = {name: bound for name, bound in bounds.items() if bound is not None}
    _require_both_or_neither(len(bounds))
    bounds = range_operands(_OPERATOR, input, axis, **bounds)
    signed_input = boolean(_OPERATOR, "signed_input", signed_input)
    narrow_range = boolean(_OPERATOR, "narrow_range", narrow_range)
    largest = _LARGEST_NUM_BITS[signed_input]
    what = f"from 1 to {largest}, with signed_input={signed_input}"
    num_bits = integer(_OPERATOR, "num_bits", num_bits, range(1, largest + 1), what)
    require_round_mode(_OPERATOR, round_mode, _ROUND_MODES)
    return _quantize_and_dequantize(input, bounds or None, signed_input, num_bits, round_mode, narrow_range, axis)


@once_for_each_signature
def _require_both_or_neither(count: int) -> None:
    text = "and input_max must both be given, or neither, for the range of the input"
    require(count != 1, message(_OPERATOR, "input_min", text))
