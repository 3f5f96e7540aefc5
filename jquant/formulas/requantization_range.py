"""The range of the 32-bit integers that occur in a tensor, as TensorFlow computes it in float64."""

import jax
import jax.numpy as jnp
from jax import lax

from jquant.arithmetic import exact, significands, wide
from jquant.arithmetic.straight_through import straight_through
from jquant.arithmetic.wide import Words
from jquant.formulas import min_first, ranges
from jquant.lowering import materialize
from jquant.results import RangeOutput


def actual_range(x: jax.Array, low: jax.Array, high: jax.Array) -> RangeOutput:
    """The real numbers of the smallest element of `x`, or 0 if that is smaller, and of the largest one."""
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
    """``(x + 2**31) * scale`` as an exponent and 53 bits: rounded to float64 twice, once in the scale."""
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
    zeros = jnp.where(largest, -1, wide.leading_zeros_of_word(steps))
    steps = jnp.where(largest, half, steps << (zeros & 31).astype(jnp.uint32))
    product = wide.product(steps, scale)  # 84 or 85 bits
    short = product[2] >> 20 == 0
    last, low, high = wide.select(short, wide.shift_left(product, jnp.int32(1)), product)
    up = (last >> 31 == 1) & (((last << 1) != 0) | (low & 1 == 1))
    number = wide.add((low, high), (up.astype(jnp.uint32), jnp.uint32(0)))
    return exponent - zeros + 32 - short.astype(jnp.int32), number


def _sum(a: jax.Array, exponent: jax.Array, b: Words) -> jax.Array:
    """``float32(fl(a + b * 2**exponent))``, where ``fl`` rounds to float64, for 53-bit `b`."""
    a_exponent, a_significand = significands.decompose(a)
    # The last bit of b is bit 4 of a 96-bit number. The range ensures that the last bit of a is no lower, unless a is 0.
    shift = jnp.where(a == 0, jnp.int32(0), a_exponent - 150 - (exponent - 4))
    first = jnp.where(a == 0, jnp.uint32(0), a_significand.astype(jnp.uint32))
    a_number = wide.shift_left((first, jnp.zeros_like(first), jnp.zeros_like(first)), jnp.clip(shift, 0, 60))
    b_number = b[0] << 4, (b[1] << 4) | (b[0] >> 28), b[1] >> 28
    total = wide.add(b_number, wide.select(a < 0, wide.negate(a_number), a_number))
    is_negative = wide.is_negative(total)
    total = wide.select(is_negative, wide.negate(total), total)
    zeros = wide.leading_zeros(total)
    last, low, high = wide.shift_left(total, zeros)
    # Rounded to 53 bits and then to 24, half to even both times.
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
