"""TensorFlow's Dequantize"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jquant.arguments.assertions import once_for_each_signature, require, require_named_type
from jquant.arguments.naming import Operator, message
from jquant.arguments.operands import operand
from jquant.arguments.ranges import range_operands, require_one_range, require_quantized
from jquant.arguments.statics import boolean
from jquant.arithmetic import exact
from jquant.arithmetic.broadcasting import shape_along
from jquant.formulas import min_first, ranges
from jquant.lowering.formula import formula
from jquant.modes import QuantizeMode, data_type, quantize_mode
from jquant.placement import explain_array_errors

_OPERATOR = Operator("dequantize", "Dequantize")
_DATA_TYPES = "qint8", "quint8", "qint32", "qint16", "quint16"  # the attribute T


def _min_combined(input: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    half = -float(jnp.iinfo(input.dtype).min)
    value = exact.sum(input.astype(jnp.float32), jnp.float32(half))
    return exact.sum(exact.product(value, ranges.step(low, high, input.dtype)), low)


def _scaled(input: jax.Array, low: jax.Array, high: jax.Array, narrow_range: bool) -> jax.Array:
    limits = jnp.iinfo(input.dtype)
    scale = exact.quotient(high, jnp.float32(limits.max))
    if limits.min < 0:
        scale = ranges.maximum(exact.quotient(low, jnp.float32(limits.min + narrow_range)), scale)
    return exact.product(input.astype(jnp.float32), scale)


@formula("dequantize", static=("mode", "narrow_range", "axis", "dtype"))
def _dequantize(
    input: jax.Array,
    min_range: jax.Array,
    max_range: jax.Array,
    mode: QuantizeMode,
    narrow_range: bool,
    axis: int | None,
    dtype: np.dtype,
) -> jax.Array:
    shape = shape_along(axis, input.ndim)
    low, high = exact.widen(min_range).reshape(shape), exact.widen(max_range).reshape(shape)
    if mode == QuantizeMode.MIN_COMBINED:
        value = _min_combined(input, low, high)
    elif mode == QuantizeMode.MIN_FIRST:
        value = exact.seal(min_first.dequantize(input, low, high))
    else:
        value = _scaled(input, low, high, narrow_range)
    return exact.narrow(value, dtype)


@explain_array_errors
def dequantize(
    input: ArrayLike,
    /,
    min_range: ArrayLike,
    max_range: ArrayLike,
    *,
    mode: QuantizeMode | str = QuantizeMode.MIN_COMBINED,
    narrow_range: bool = False,
    axis: int | None = None,
    dtype: DTypeLike | str = jnp.float32,
) -> jax.Array:
    """Maps the integers of `quantize` back to real numbers, as TensorFlow's CPU kernel does, bit for bit.

    With `T` the type of `input`, and each step in float32,

    - ``MIN_COMBINED``: ``(input - min(T)) * scale + min_range`` with
      ``scale = (max_range - min_range) / (2**bits - 1)``.
    - ``MIN_FIRST``: ``(away(min_range / scale) * scale - min(T) * scale) + input * scale`` with the same scale: a
      range that holds 0 gives a real 0.
    - ``SCALED``: ``input * scale`` with ``scale = max_range / max(T)`` or, for signed types, the larger of that and
      ``min_range / min(T)``. Integer 0 is real 0.

    The range is the one that `quantize` returns, and is used as given: it is neither extended to include zero nor widened.
    32-bit integers are first rounded to float32.

    The derivative in the range is that of the formula without its roundings.

    Args:
      input: int8, uint8, int16, uint16 or int32 (TensorFlow's qint8 ... qint32), any shape.
      min_range, max_range: float32: one element in any shape or, with `axis`, of shape ``(input.shape[axis],)``.
        Infinite bounds are not specified.
      mode: a `QuantizeMode` or its name.
      narrow_range: whether the lowest integer is unused. It acts only in SCALED, for signed types.
      axis: the dimension along which each slice has a range of its own, counted from 0; None for one range. Negative
        numbers raise. MIN_FIRST takes it only where that dimension has size 1.
      dtype: float32; in MIN_COMBINED also bfloat16, which rounds the result once more.

    Returns:
      `dtype`, of the shape of `input`.

    Raises:
      DescriptorError: a shape, axis or combination of modes that is not defined, or ``max_range < min_range``
        in Python or NumPy values. A `jax.Array` is not read back for that.
      DescriptorTypeError: a data type other than those above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> x = jnp.array([-128, -6, 0, 115, 127], jnp.int8)
      >>> jquant.dequantize(x, -10, 9.921875, mode="SCALED")
      Array([-10.      ,  -0.46875 ,   0.      ,   8.984375,   9.921875],      dtype=float32)

    References:
      TensorFlow, `tf.raw_ops.Dequantize` (its CPU kernel).
    """
    mode, dtype = quantize_mode(mode), data_type("dtype", dtype)
    narrow_range = boolean(_OPERATOR, "narrow_range", narrow_range)
    input = operand(_OPERATOR, "input", input)
    require_quantized(_OPERATOR, "input", input.dtype, *_DATA_TYPES)
    low, high = range_operands(_OPERATOR, input, axis, min_range=min_range, max_range=max_range)
    require_named_type(_OPERATOR, "dtype", dtype, ("FLOAT32", "BFLOAT16"))
    _require_mode_of_dtype(mode, dtype)
    if mode == QuantizeMode.MIN_FIRST:
        require_one_range(_OPERATOR, input, axis)
    return _dequantize(input, low, high, mode, narrow_range, axis, dtype)


@once_for_each_signature
def _require_mode_of_dtype(mode: QuantizeMode, dtype: np.dtype) -> None:
    is_allowed = mode == QuantizeMode.MIN_COMBINED or dtype != jnp.bfloat16
    require(is_allowed, message(_OPERATOR, "dtype", f"is BFLOAT16, which is for mode MIN_COMBINED only, not {mode}"))
