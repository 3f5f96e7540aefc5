"""TensorFlow's Quantize (the op `QuantizeV2`)"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.naming import Operator, message
from jquant.arguments.operands import float_operand, optional_scalar
from jquant.arguments.ranges import range_operands, require_one_range, require_quantized, require_round_mode
from jquant.arguments.statics import boolean
from jquant.arithmetic import exact, rounding
from jquant.arithmetic.broadcasting import shape_along
from jquant.formulas import min_first, ranges
from jquant.lowering.formula import formula
from jquant.modes import QuantizeMode, RoundMode, data_type, quantize_mode, rounding_mode
from jquant.placement import explain_array_errors
from jquant.results import QuantizeOutput

_OPERATOR = Operator("quantize", "QuantizeV2")
_DATA_TYPES = "qint8", "quint8", "qint32", "qint16", "quint16"  # the attribute T
_LEGACY_MINIMUM_RANGE = 0.01
_ROUND_MODES = RoundMode.HALF_AWAY_FROM_ZERO, RoundMode.HALF_TO_EVEN


def _adjusted_range(low: jax.Array, high: jax.Array, ensure_minimum_range: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The range, widened to include 0 and to span the minimum width, which follows from the range as given."""
    largest = ranges.maximum(jnp.float32(1), ranges.maximum(lax.abs(low), lax.abs(high)))
    adjusted_low = ranges.minimum(jnp.float32(0), low)
    least_high = exact.sum(adjusted_low, exact.product(largest, ensure_minimum_range))
    return adjusted_low, ranges.maximum(jnp.float32(0), ranges.maximum(high, least_high))


def _min_combined(input: jax.Array, low: jax.Array, high: jax.Array, dtype: np.dtype) -> jax.Array:
    scale = ranges.steps_per_unit(low, high, dtype)
    value = exact.product(exact.difference(ranges.clamp(input, low, high), low), scale)
    if jnp.issubdtype(dtype, jnp.signedinteger):
        return rounding.round_half_away(exact.difference(value, jnp.float32(2.0 ** (jnp.iinfo(dtype).bits - 1))))
    return rounding.round_half_up(value)


def _scaled(
    input: jax.Array, low: jax.Array, high: jax.Array, dtype: np.dtype, round_mode: RoundMode, narrow_range: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    limits = jnp.iinfo(dtype)
    min_t, max_t = jnp.float32(limits.min + narrow_range), jnp.float32(limits.max)
    scale = ranges.minimum(*ranges.scales(low, high, min_t, max_t))
    low, high = (exact.without_subnormals(exact.quotient(limit, scale)) for limit in (min_t, max_t))
    value = exact.product(ranges.clamp(input, low, high), scale)
    nearest = rounding.round_half_even if round_mode == RoundMode.HALF_TO_EVEN else rounding.round_half_away
    return nearest(value), low, high


@formula("quantize", static=("dtype", "mode", "round_mode", "narrow_range", "axis"))
def _quantize(
    input: jax.Array,
    min_range: jax.Array,
    max_range: jax.Array,
    ensure_minimum_range: jax.Array | None,
    dtype: np.dtype,
    mode: QuantizeMode,
    round_mode: RoundMode,
    narrow_range: bool,
    axis: int | None,
) -> QuantizeOutput:
    range_shape = () if axis is None else (-1,)
    shape = shape_along(axis, input.ndim)
    least = jnp.float32(_LEGACY_MINIMUM_RANGE) if ensure_minimum_range is None else exact.widen(ensure_minimum_range)
    input, low, high = map(exact.widen, (input, min_range, max_range))
    low, high = _adjusted_range(low.reshape(shape), high.reshape(shape), least)
    if mode == QuantizeMode.MIN_COMBINED:
        value = _min_combined(input, low, high, dtype)
    elif mode == QuantizeMode.MIN_FIRST:
        value = min_first.quantize(input, low, high, dtype)
    else:
        value, low, high = _scaled(input, low, high, dtype, round_mode, narrow_range)
    return QuantizeOutput(rounding.saturated(value, dtype), low.reshape(range_shape), high.reshape(range_shape))


@explain_array_errors
def quantize(
    input: ArrayLike,
    /,
    min_range: ArrayLike,
    max_range: ArrayLike,
    dtype: DTypeLike | str,
    *,
    mode: QuantizeMode | str = QuantizeMode.MIN_COMBINED,
    round_mode: RoundMode | str = RoundMode.HALF_AWAY_FROM_ZERO,
    narrow_range: bool = False,
    axis: int | None = None,
    ensure_minimum_range: ArrayLike | None = None,
) -> QuantizeOutput:
    """Quantizes real numbers by a range, as TensorFlow's CPU kernel does, bit for bit.

    The range is first adjusted: it is extended to include zero, and its maximum is raised until the range is at
    least ``max(1, |min_range|, |max_range|) * ensure_minimum_range`` wide. With `T` the output type,

    - ``MIN_COMBINED``: ``(clamp(input) - min_range) * (2**bits - 1) / (max_range - min_range)``, less
      ``2**(bits - 1)`` for signed types; rounded half away from zero. (0 in [-6, 6] is -1 in qint8.)
    - ``MIN_FIRST``: ``round(input * scale) - round(min_range * scale) + min(T)`` with
      ``scale = (2**bits - 1) / (max_range - min_range)``, in float32.
    - ``SCALED``: ``round(clamp(input) * scale)`` with the largest scale that keeps the range within T. Real 0
      is integer 0, so the output suits the operators that take scales, with a zero point of 0 and ``1 / scale``.

    Infinities saturate. Where TensorFlow's result depends on the position in the array or wraps, this one is
    defined: NaN gives 0, and qint32 saturates at 2**31 - 1 (``MIN_FIRST``: at 2147483520, as in TensorFlow).
    A NaN in `min_range` counts as 0, and so does one in `max_range`. Infinite ranges are not specified.

    `output` is an integer array and has no derivative (JAX's zero, of type float0). To train through the rounding, use
    `quantize_and_dequantize` or `fake_quantize`. The range of the output is differentiable.

    Args:
      input: float32, any shape.
      min_range, max_range: float32: one element in any shape or, with `axis`, of shape ``(input.shape[axis],)``.
      dtype: "qint8", "quint8", "qint16", "quint16", "qint32", or the plain dtype that stores it.
      mode: a `QuantizeMode` or its name.
      round_mode: a `RoundMode` or its name; "HALF_TO_EVEN" for SCALED only.
      narrow_range: whether to leave the lowest integer unused. It acts in SCALED only. (With unsigned types, real 0 is then
        integer 1.)
      axis: the dimension along which each slice has a range of its own, counted from 0; None for one
        range. Negative numbers raise. MIN_FIRST takes it only where that dimension has size 1.
      ensure_minimum_range: float32, one element. None: the specification's legacy default, 0.01; it recommends 0 for new
        uses.

    Returns:
      `QuantizeOutput`: `output` has the shape of `input`; `output_min` and `output_max`, float32, are the real
      numbers at which the adjusted range begins and ends, in shape () or, with `axis`, ``(input.shape[axis],)``
      (TensorFlow has () where that dimension has size 1).

    Raises:
      DescriptorError: a shape, axis or combination of modes that is not defined, or ``max_range < min_range``
        in Python or NumPy values. A `jax.Array` is not read back for that: the result is then a range with zero inside.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([-10.0, -0.5, 0.0, 9.0, 99.0])
      >>> output, output_min, output_max = jquant.quantize(
      ...     x, -10, 9, "qint8", mode="SCALED", ensure_minimum_range=0)
      >>> print(output, output_min, output_max)
      [-128   -6    0  115  127] -10.0 9.921875

    References:
      TensorFlow, `tf.raw_ops.QuantizeV2` (its CPU kernel without oneDNN).
    """
    dtype, mode, round_mode = data_type("dtype", dtype), quantize_mode(mode), rounding_mode(round_mode)
    input = float_operand(_OPERATOR, "input", input)
    min_range, max_range = range_operands(_OPERATOR, input, axis, min_range=min_range, max_range=max_range)
    least = optional_scalar(_OPERATOR, "ensure_minimum_range", ensure_minimum_range)
    narrow_range = boolean(_OPERATOR, "narrow_range", narrow_range)
    require_quantized(_OPERATOR, "dtype", dtype, *_DATA_TYPES)
    require_round_mode(_OPERATOR, round_mode, _ROUND_MODES)
    _require_mode_of_rounding(mode, round_mode)
    if mode == QuantizeMode.MIN_FIRST:
        require_one_range(_OPERATOR, input, axis)
    return _quantize(input, min_range, max_range, least, dtype, mode, round_mode, narrow_range, axis)


@once_for_each_signature
def _require_mode_of_rounding(mode: QuantizeMode, round_mode: RoundMode) -> None:
    is_allowed = mode == QuantizeMode.SCALED or round_mode != RoundMode.HALF_TO_EVEN
    text = f"is HALF_TO_EVEN, which is for mode SCALED only, not {mode}"
    require(is_allowed, message(_OPERATOR, "round_mode", text))
