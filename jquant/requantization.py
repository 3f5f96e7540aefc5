"""How TensorFlow takes 32-bit integers of one range to 8-bit integers of another, and finds the range of those that occur.

It holds qint32 in float32 throughout, and computes what does not depend on the elements in float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant import exact, float64, min_first, ranges, wide
from jquant.descriptor import require
from jquant.operands import Operand
from jquant.straight_through import straight_through


def in_range(x: jax.Array, low: jax.Array, high: jax.Array, new_low: jax.Array, new_high: jax.Array, dtype: np.dtype):
    """The integers `x` of [low, high] as integers of [new_low, new_high]"""
    if dtype == jnp.uint8:
        return _to_uint8(x, low, high, new_low, new_high)
    value = min_first.quantize(min_first.dequantize(x, low, high), new_low, new_high, dtype)
    return exact.saturating_cast(value, dtype)


def _to_uint8(x: jax.Array, low: jax.Array, high: jax.Array, new_low: jax.Array, new_high: jax.Array) -> jax.Array:
    """``clamp((((x * scale) >> 32) + offset + 2**15) >> 16)`` in integers, of which the lower 16 bits are a fraction."""
    scale, offset = _fixed_point(low, high, new_low, new_high)
    x = exact.seal(x.astype(jnp.float32))
    magnitude = wide.product((lax.abs(x).astype(jnp.uint32),), scale)
    _, *product = wide.select(x < 0, wide.negate(magnitude), magnitude)
    low_word, high_word = wide.add(tuple(product), offset)
    value = lax.min(low_word >> 16, jnp.full_like(low_word, 255))
    value = jnp.where(high_word == 0, value, jnp.where(high_word >> 31 == 1, jnp.uint32(0), jnp.uint32(255)))
    return value.astype(jnp.uint8)


def _fixed_point(low: jax.Array, high: jax.Array, new_low: jax.Array, new_high: jax.Array) -> tuple[wide.Words, wide.Words]:
    """`scale` and `offset + 2**15` as 64-bit integers; 0 and ``2**15`` for a new range that is one point."""
    width, new_width = exact.difference(high, low), exact.difference(new_high, new_low)
    empty = new_width == 0
    divisor = jnp.where(empty, jnp.float32(1), new_width)

    def fixed(x: jax.Array) -> float64.Float64:
        steps = float64.product(float64.constant(255.0 * 2**16, x), float64.from_float32(x))
        return float64.quotient(steps, divisor)

    center = exact.product(exact.sum(low, high), jnp.float32(0.5))
    input_offset = exact.product(center, exact.quotient(jnp.float32(255), divisor))
    input_offset = float64.truncate(float64.from_float32(input_offset * 2.0**16))
    output_offset = float64.round_half_away(fixed(new_low))
    none = wide.zeros_like(output_offset[0], 2)
    offset = wide.select(empty, none, wide.add(input_offset, wide.negate(output_offset)))
    scale = wide.select(empty, none, float64.truncate(fixed(width)))
    return scale, wide.increment(offset, jnp.full_like(offset[0], 2**15))


def actual_range(x: jax.Array, low: jax.Array, high: jax.Array) -> ranges.RangeOutput:
    """The real numbers of the smallest of `x`, or 0 if that is less, and of the largest one."""
    limits = jnp.iinfo(x.dtype)
    smallest = _real(jnp.min(x, initial=limits.max), low, high)
    return ranges.RangeOutput(ranges.minimum(jnp.float32(0), smallest), _real(jnp.max(x, initial=limits.min), low, high))


def _real(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """``rounded_low + (x + 2**31) * scale`` in float64, with ``scale = (high - low) * (2**32 / (2**32 - 1)) / 2**32``."""
    x = exact.seal(x.astype(jnp.float32))
    surrogate = low + (x + 2.0**31) * ((high - low) * 2.0**-32)
    given = low, high = lax.stop_gradient(low), lax.stop_gradient(high)
    width = float64.from_float32(exact.difference(high, low))
    width = float64.product(width, float64.constant(1 + 2.0**-32, x))  # 2**32 / (2**32 - 1) is that in float64
    scale = float64.product(width, float64.constant(2.0**-32, x))
    offset = float64.sum(float64.from_float32(x), float64.constant(2.0**31, x))
    rounded = float64.from_float32(min_first.rounded_low(*given, float64.to_float32(scale)))
    value = float64.to_float32(float64.sum(rounded, float64.product(offset, scale)))
    return straight_through(jnp.where(low == high, low, value), surrogate)


def magnitude(low: jax.Array, high: jax.Array) -> jax.Array:
    """The largest absolute value of a range."""
    return ranges.maximum(lax.abs(low), lax.abs(high))


def check(operator: str, input: Operand, axis: int | None, input_min: Operand, input_max: Operand) -> None:
    """Asserts what the operators have in common: the data types, and the range."""
    ranges.require_quantized(operator, "Tinput", input.dtype, "qint32")
    ranges.check(operator, input, axis, input_min=input_min, input_max=input_max)


def check_per_channel(operator: str, input: Operand, input_min: Operand, input_max: Operand) -> None:
    """The same, with a range for each of the last dimension."""
    require(input.ndim > 0, f"{operator}: input is a scalar; it must have channels, which are its last dimension")
    check(operator, input, input.ndim - 1, input_min, input_max)
