"""TensorFlow's conversion of 32-bit integers of one range to 8-bit integers of another, and the range of those that occur.

It holds qint32 in float32 throughout, and computes what does not depend on the elements in float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact, rounding, significands, wide
from jquant.arithmetic.straight_through import straight_through
from jquant.arithmetic.wide import Words
from jquant.formulas import min_first, ranges
from jquant.lowering import materialize
from jquant.results import RangeOutput


def in_range(x: jax.Array, low: jax.Array, high: jax.Array, new_low: jax.Array, new_high: jax.Array, dtype: np.dtype):
    """The integers `x` of [low, high] as integers of [new_low, new_high]."""
    if dtype == jnp.uint8:
        return _to_uint8(x, low, high, new_low, new_high)
    value = min_first.quantize(min_first.dequantize(x, low, high), new_low, new_high, dtype)
    return rounding.saturated(value, dtype)


def _to_uint8(x: jax.Array, low: jax.Array, high: jax.Array, new_low: jax.Array, new_high: jax.Array) -> jax.Array:
    """``clamp((((x * scale) >> 32) + offset + 2**15) >> 16)`` in integers, whose lower 16 bits are a fraction."""
    scale, offset = _scale_and_offset(low, high, new_low, new_high)
    offset = wide.add(offset, (jnp.uint32(2**15), jnp.uint32(0)))
    x = x.astype(jnp.float32)
    # A negative number counts as 2**32 more, and its product as 2**32 * scale more.
    offset = wide.select(x < 0, wide.add(offset, wide.negate(scale)), offset)
    word = x.astype(jnp.int32).astype(jnp.uint32)
    word = jnp.where(x == 2.0**31, jnp.uint32(2**31), word)
    _, *product = wide.product(word, scale)
    low_word, high_word = wide.add(tuple(product), offset)
    value = jnp.where(high_word == 0, low_word >> 16, jnp.uint32(255))
    value = jnp.where(wide.is_negative((low_word, high_word)), jnp.uint32(0), value)
    return materialize.shared(lax.min(value, jnp.full_like(value, 255)).astype(jnp.uint8))


def _scale_and_offset(low: jax.Array, high: jax.Array, new_low: jax.Array, new_high: jax.Array) -> tuple[Words, Words]:
    """The 64-bit integers of `_to_uint8`; 0 for a new range that is a single point."""
    width, new_width = exact.difference(high, low), exact.difference(new_high, new_low)
    divisor = jnp.where(new_width == 0, jnp.float32(1), new_width)
    center = exact.product(exact.sum(low, high), jnp.float32(0.5))
    input_offset = exact.product(center, exact.quotient(jnp.float32(255), divisor)) * 2.0**16
    upper = lax.floor(lax.abs(input_offset) * 2.0**-32)
    lower = lax.abs(input_offset) - upper * 2.0**32
    magnitude = lower.astype(jnp.uint32), upper.astype(jnp.uint32)
    input_offset = wide.select(input_offset < 0, wide.negate(magnitude), magnitude)
    # Twice each quotient: the last bit is cut off, or rounded half away from zero.
    doubled = _twice_of_steps(jnp.stack([width, lax.abs(new_low)]), divisor)
    (scale_low, output_low), (scale_high, output_high) = doubled
    scale = wide.shift_right((scale_low, scale_high), jnp.int32(1))
    output_offset = wide.add((output_low, output_high), (jnp.uint32(1), jnp.uint32(0)))
    offset = wide.add(input_offset, wide.shift_right(output_offset, jnp.int32(1)))  # this part is -new_low
    none = (jnp.uint32(0),) * 2
    return wide.select(new_width == 0, none, scale), wide.select(new_width == 0, none, offset)


def _twice_of_steps(x: jax.Array, width: jax.Array) -> Words:
    """``floor(2 * fl(255 * 2**16 * x / width))``, where the quotient is rounded to float64, if it is below 2**62."""
    x_exponent, x_significand = significands.decompose(x)
    exponent, divisor = significands.decompose(width)
    divisor = jnp.broadcast_to(divisor.astype(jnp.uint32), x.shape)
    # Long division: 7 to 9 bits before the point, and 6 bytes after it.
    remainder = 255 * x_significand.astype(jnp.uint32)
    digits = []
    for _ in range(7):
        digits.append(lax.div(remainder, divisor))
        remainder = (remainder - digits[-1] * divisor) << 8
    first, *rest = digits
    high = (first << 16) | (rest[0] << 8) | rest[1]
    low = (rest[2] << 24) | (rest[3] << 16) | (rest[4] << 8) | rest[5]
    # To 53 bits, half to even: the last 2, 3 or 4 are dropped.
    unit = jnp.where(first < 128, jnp.uint32(4), jnp.where(first < 256, jnp.uint32(8), jnp.uint32(16)))
    tail, odd = low & (unit - 1), (low & unit) != 0
    up = (2 * tail > unit) | ((2 * tail == unit) & ((remainder != 0) | odd))
    zero = jnp.zeros_like(low)
    number = wide.add((low - tail, high), (jnp.where(up, unit, zero), zero))
    number = wide.select(x == 0, (zero, zero), wide.shift_left(number, jnp.int32(7)))
    # It has 55 bits after the point.
    return wide.shift_right(number, jnp.clip(55 - 1 - 16 - (x_exponent - exponent), 0, 64))


def actual_range(x: jax.Array, low: jax.Array, high: jax.Array) -> RangeOutput:
    """The real numbers of the smallest of `x`, or 0 if that is smaller, and of the largest one."""
    limits = jnp.iinfo(x.dtype)
    extremes = jnp.stack([jnp.min(x, initial=limits.max), jnp.max(x, initial=limits.min)])
    smallest, largest = _real(_in_float32(extremes), low, high)
    return RangeOutput(ranges.minimum(jnp.float32(0), smallest), largest)


def _real(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """``float32(rounded_low + (x + 2**31) * (width * (2**32 / (2**32 - 1)) / 2**32))`` in float64."""
    surrogate = low + (x + 2.0**31) * ((high - low) * 2.0**-32)
    low, high = lax.stop_gradient(low), lax.stop_gradient(high)
    width = exact.difference(high, low)
    exponent, offset = _offset(x, width)
    rounded = min_first.rounded_low(low, high, exact.product(width, jnp.float32(2.0**-32)))
    return straight_through(materialize.once(jnp.where(low == high, low, _sum(rounded, exponent, offset))), surrogate)


def _offset(x: jax.Array, width: jax.Array) -> tuple[jax.Array, Words]:
    """``(x + 2**31) * scale`` as an exponent and 53 bits: two roundings of float64, one of them in the scale."""
    exponent, width_significand = significands.decompose(width)
    significand = width_significand.astype(jnp.uint32)
    # 2**32 / (2**32 - 1) is 1 + 2**-32 in float64. Of the 56-bit product with that, the last 3 bits are dropped.
    eighth, tail = significand >> 3, significand & 7
    eighth = eighth + ((tail > 4) | ((tail == 4) & (eighth & 1 == 1))).astype(jnp.uint32)
    scale, exponent = ((significand << 29) | eighth, significand >> 3), exponent - 150 - 61

    magnitude = lax.abs(x).astype(jnp.uint32)
    half = jnp.uint32(2**31)
    steps = half + jnp.where(x < 0, -magnitude, magnitude)
    largest = x == 2.0**31  # 2**32 steps
    zeros = jnp.where(largest, -1, lax.clz(steps).astype(jnp.int32))
    steps = jnp.where(largest, half, steps << (zeros & 31).astype(jnp.uint32))
    product = wide.product(steps, scale)  # 84 or 85 bits
    short = product[2] >> 20 == 0
    last, low, high = wide.select(short, wide.shift_left(product, jnp.int32(1)), product)
    up = (last >> 31 == 1) & (((last << 1) != 0) | (low & 1 == 1))
    number = wide.add((low, high), (up.astype(jnp.uint32), jnp.uint32(0)))
    return exponent - zeros + 32 - short.astype(jnp.int32), number


def _sum(a: jax.Array, exponent: jax.Array, b: Words) -> jax.Array:
    """``float32(fl(a + b * 2**exponent))``, where the sum is rounded to float64, for 53-bit `b`."""
    a_exponent, a_significand = significands.decompose(a)
    # The last bit of b is bit 4 of a 96-bit number. The range ensures that the last bit of a is no lower, if a is not 0.
    shift = jnp.where(a == 0, jnp.int32(0), a_exponent - 150 - (exponent - 4))
    first = jnp.where(a == 0, jnp.uint32(0), a_significand.astype(jnp.uint32))
    a_number = wide.shift_left((first, jnp.zeros_like(first), jnp.zeros_like(first)), jnp.clip(shift, 0, 60))
    b_number = b[0] << 4, (b[1] << 4) | (b[0] >> 28), b[1] >> 28
    total = wide.add(b_number, wide.select(a < 0, wide.negate(a_number), a_number))
    is_negative = wide.is_negative(total)
    total = wide.select(is_negative, wide.negate(total), total)
    zeros = wide.leading_zeros(total)
    last, low, high = wide.shift_left(total, zeros)
    # To 53 bits and then to 24, half to even both times.
    tail, rest = (high << 21) | (low >> 11), low & 0x7FF
    tail, kept = tail & (2**29 - 1), high >> 8
    tail += ((rest > 0x400) | ((rest == 0x400) & ((last != 0) | (tail & 1 == 1)))).astype(jnp.uint32)
    kept += ((tail > 2**28) | ((tail == 2**28) & (kept & 1 == 1))).astype(jnp.uint32)
    sign = jnp.where(is_negative, jnp.int32(-(2**31)), jnp.int32(0))
    value = significands.assemble(sign, exponent - 4 - zeros + 72 + 150, kept.astype(jnp.int32))
    value = jnp.where(high == 0, jnp.float32(0), value)
    return jnp.where((shift > 60) | (b[0] | b[1] == 0), a, value)


def _in_float32(x: jax.Array) -> jax.Array:
    return exact.seal(x.astype(jnp.float32))


def magnitude(low: jax.Array, high: jax.Array) -> jax.Array:
    """The largest absolute value of a range."""
    return ranges.maximum(lax.abs(low), lax.abs(high))
