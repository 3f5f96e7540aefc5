"""TensorFlow's conversion of 32-bit integers of one range to 8-bit integers of another.

TensorFlow holds qint32 in float32 throughout, and computes in float64 what does not depend on the elements.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact, rounding, significands, wide
from jquant.arithmetic.wide import Words
from jquant.formulas import min_first
from jquant.lowering import materialize


def in_range(
    x: jax.Array, low: jax.Array, high: jax.Array, new_low: jax.Array, new_high: jax.Array, dtype: np.dtype
) -> jax.Array:
    """The integers `x` of the range [low, high], converted to integers of the range [new_low, new_high]."""
    if dtype == jnp.uint8:
        return _to_uint8(x, low, high, new_low, new_high)
    value = min_first.quantize(min_first.dequantize(x, low, high), new_low, new_high, dtype)
    return rounding.saturated(value, dtype)


def _to_uint8(x: jax.Array, low: jax.Array, high: jax.Array, new_low: jax.Array, new_high: jax.Array) -> jax.Array:
    """``clamp((((x * scale) >> 32) + offset + 2**15) >> 16)`` in fixed point, with 16 bits after the point."""
    scale, offset = _scale_and_offset(low, high, new_low, new_high)
    offset = wide.add(offset, (jnp.uint32(2**15), jnp.uint32(0)))
    x = x.astype(jnp.float32)
    # As an unsigned word, a negative number is 2**32 more, and its product 2**32 * scale more.
    offset = wide.select(x < 0, wide.add(offset, wide.negate(scale)), offset)
    word = x.astype(jnp.int32).astype(jnp.uint32)
    word = jnp.where(x == 2.0**31, jnp.uint32(2**31), word)
    _, *product = wide.product(word, scale)
    low_word, high_word = wide.add(tuple(product), offset)
    value = jnp.where(high_word == 0, low_word >> 16, jnp.uint32(255))
    value = jnp.where(wide.is_negative((low_word, high_word)), jnp.uint32(0), value)
    return materialize.shared(lax.min(value, jnp.full_like(value, 255)).astype(jnp.uint8))


def _scale_and_offset(low: jax.Array, high: jax.Array, new_low: jax.Array, new_high: jax.Array) -> tuple[Words, Words]:
    """The scale and the offset of `_to_uint8`, in 64 bits; 0 for a new range that is a single point."""
    width, new_width = exact.difference(high, low), exact.difference(new_high, new_low)
    divisor = jnp.where(new_width == 0, jnp.float32(1), new_width)
    center = exact.product(exact.sum(low, high), jnp.float32(0.5))
    input_offset = exact.product(center, exact.quotient(jnp.float32(255), divisor)) * 2.0**16
    upper = lax.floor(lax.abs(input_offset) * 2.0**-32)
    lower = lax.abs(input_offset) - upper * 2.0**32
    magnitude = lower.astype(jnp.uint32), upper.astype(jnp.uint32)
    input_offset = wide.select(input_offset < 0, wide.negate(magnitude), magnitude)
    # Twice each quotient, whose last bit is then cut off, or rounded half away from zero.
    doubled = _doubled_steps(jnp.stack([width, lax.abs(new_low)]), divisor)
    (scale_low, output_low), (scale_high, output_high) = doubled
    scale = wide.shift_right((scale_low, scale_high), jnp.int32(1))
    output_offset = wide.add((output_low, output_high), (jnp.uint32(1), jnp.uint32(0)))
    offset = wide.add(input_offset, wide.shift_right(output_offset, jnp.int32(1)))  # this part is -new_low
    zero = (jnp.uint32(0),) * 2
    return wide.select(new_width == 0, zero, scale), wide.select(new_width == 0, zero, offset)


def _doubled_steps(x: jax.Array, width: jax.Array) -> Words:
    """``floor(2 * fl(255 * 2**16 * x / width))``, where ``fl`` rounds to float64, for results below 2**62."""
    x_exponent, x_significand = significands.decompose(x)
    exponent, divisor = significands.decompose(width)
    divisor = jnp.broadcast_to(divisor.astype(jnp.uint32), x.shape)
    # By long division: 7 to 9 bits before the point, and 6 bytes after it.
    remainder = 255 * x_significand.astype(jnp.uint32)
    digits = []
    for _ in range(7):
        digits.append(lax.div(remainder, divisor))
        remainder = (remainder - digits[-1] * divisor) << 8
    first, *rest = digits
    high = (first << 16) | (rest[0] << 8) | rest[1]
    low = (rest[2] << 24) | (rest[3] << 16) | (rest[4] << 8) | rest[5]
    # Rounded to 53 bits, half to even: the last 2, 3 or 4 bits are dropped.
    unit = jnp.where(first < 128, jnp.uint32(4), jnp.where(first < 256, jnp.uint32(8), jnp.uint32(16)))
    tail, odd = low & (unit - 1), (low & unit) != 0
    up = (2 * tail > unit) | ((2 * tail == unit) & ((remainder != 0) | odd))
    zero = jnp.zeros_like(low)
    number = wide.add((low - tail, high), (jnp.where(up, unit, zero), zero))
    number = wide.select(x == 0, (zero, zero), wide.shift_left(number, jnp.int32(7)))
    # It has 55 bits after the point.
    return wide.shift_right(number, jnp.clip(55 - 1 - 16 - (x_exponent - exponent), 0, 64))
