"""float64 arithmetic as IEEE 754 defines it, in 32-bit integers, for the few numbers that a document computes so.

Every result is rounded once to 53 bits, half to even. The operands come from float32, and so no exponent is too large or too
small. Infinities and NaN are not among the numbers.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant import exact, wide
from jquant.wide import Words

_BITS = 53
_EXPONENT_OF_0 = -(2**20)  # less than that of any number
_INT64_MAX = np.uint32(0xFFFFFFFF), np.uint32(0x7FFFFFFF)


class Float64(NamedTuple):
    """``significand * 2 ** exponent``, negative or not; the significand has at most 53 bits, in two words."""

    is_negative: jax.Array
    exponent: jax.Array
    significand: Words


def from_float32(x: jax.Array) -> Float64:
    exponent, significand = exact.decompose(x)
    significand = jnp.where(x == 0, jnp.uint32(0), significand.astype(jnp.uint32))
    return Float64(x < 0, exponent - 150, (significand, jnp.zeros_like(significand)))


def constant(value: float, like: jax.Array) -> Float64:
    """A number of the program, in the shape of `like`."""
    numerator, denominator = value.as_integer_ratio()  # which is a power of two
    words = (numerator & 0xFFFFFFFF, numerator >> 32)
    significand = tuple(jnp.full_like(like, word, jnp.uint32) for word in words)
    exponent = jnp.full_like(like, 1 - denominator.bit_length(), jnp.int32)
    return Float64(jnp.zeros_like(like, bool), exponent, significand)


def product(a: Float64, b: Float64) -> Float64:
    """``fl(a * b)``"""
    significand = wide.product(a.significand, b.significand)
    return _rounded(a.is_negative ^ b.is_negative, a.exponent + b.exponent, significand)


def sum(a: Float64, b: Float64) -> Float64:
    """``fl(a + b)``"""
    (a_exponent, a_words), (b_exponent, b_words) = _normalized(a.exponent, a.significand), _normalized(*b[1:])
    swap = a_exponent < b_exponent
    large, small = wide.select(swap, b_words, a_words), wide.select(swap, a_words, b_words)
    exponent = jnp.maximum(a_exponent, b_exponent)
    # Below the larger number are 64 bits for the other. What does not fit there decides ties only: one bit tells of it.
    distance = jnp.minimum(exponent - jnp.minimum(a_exponent, b_exponent), 4 * wide.WORD)
    zero = jnp.zeros_like(large[0])
    small, lost = wide.shift_right((zero, zero, *small), distance)
    small = small[0] | _bit(~wide.is_zero(lost)), *small[1:], zero
    small = wide.select(a.is_negative ^ b.is_negative, wide.negate(small), small)
    total = wide.add((zero, zero, *large, zero), small)
    opposite = wide.is_negative(total)
    total = wide.select(opposite, wide.negate(total), total)
    is_negative = jnp.where(swap, b.is_negative, a.is_negative) ^ opposite
    return _rounded(is_negative & ~wide.is_zero(total), exponent - 2 * wide.WORD, total)


def quotient(a: Float64, d: jax.Array) -> Float64:
    """``fl(a / d)``, for a float32 divisor that is not 0."""
    exponent, (low, high) = _normalized(a.exponent, a.significand)
    d_exponent, d_significand = exact.decompose(d)
    divisor = d_significand.astype(jnp.uint32)
    # Long division in bytes: 8 of the significand, and 3 for the quotient to have 63 bits. A remainder has 24.
    digits, remainder = [], jnp.zeros_like(low)
    for number in (high, low):
        digits += [(number >> shift) & 0xFF for shift in (24, 16, 8, 0)]
    digits += [jnp.zeros_like(low)] * 3
    for index, digit in enumerate(digits):
        dividend = (remainder << 8) | digit
        digits[index], remainder = jax.lax.div(dividend, divisor), jax.lax.rem(dividend, divisor)
    words = [jnp.zeros_like(low)] * 3
    for place, digit in enumerate(reversed(digits)):
        words[place // 4] |= digit << (place % 4 * 8)
    words[0] |= _bit(remainder != 0)
    return _rounded(a.is_negative ^ (d < 0), exponent - 24 - (d_exponent - 150), tuple(words))


def to_float32(a: Float64) -> jax.Array:
    """Rounded once more."""
    exponent, (low, high) = _normalized(a.exponent, a.significand)
    kept, tail = high >> 8, high & 0xFF
    up = (tail > 0x80) | ((tail == 0x80) & ((low != 0) | (kept & 1 == 1)))
    sign = jnp.where(a.is_negative, jnp.int32(-(2**31)), jnp.int32(0))
    number = exact.assemble(sign, exponent + wide.WORD + 8 + 150, (kept + _bit(up)).astype(jnp.int32))
    return jnp.where(high == 0, jnp.float32(0), number)


def truncate(a: Float64) -> Words:
    """The 64-bit integer next to it toward zero, saturated."""
    integer, _ = _integer(a)
    return _signed(a, integer)


def round_half_away(a: Float64) -> Words:
    """The nearest 64-bit integer, ties away from zero, saturated."""
    integer, fraction = _integer(a)
    return _signed(a, wide.increment(integer, fraction[-1] >> 31))


def _integer(a: Float64) -> tuple[Words, Words]:
    """What of the magnitude is an integer, saturated, and the fraction, of 64 bits."""
    exponent, words = _normalized(a.exponent, a.significand)
    integer, fraction = wide.shift_right(words, jnp.clip(-exponent, 0, 2 * wide.WORD))
    fraction = tuple(jnp.where(exponent < -2 * wide.WORD, jnp.uint32(0), word) for word in fraction)
    limit = tuple(jnp.full_like(words[0], word) for word in _INT64_MAX)
    return wide.select(exponent >= 0, limit, integer), fraction


def _signed(a: Float64, magnitude: Words) -> Words:
    return wide.select(a.is_negative, wide.negate(magnitude), magnitude)


def _normalized(exponent: jax.Array, words: Words) -> tuple[jax.Array, Words]:
    """The same number, its highest bit the first of the words."""
    zeros = wide.leading_zeros(words)
    return jnp.where(wide.is_zero(words), jnp.int32(_EXPONENT_OF_0), exponent - zeros), wide.shift_left(words, zeros)


def _rounded(is_negative: jax.Array, exponent: jax.Array, words: Words) -> Float64:
    """A magnitude of any number of words to 53 bits."""
    exponent, (*rest, low, high) = _normalized(exponent, words)
    tail_bits = 2 * wide.WORD - _BITS
    kept = (low >> tail_bits) | (high << (wide.WORD - tail_bits)), high >> tail_bits
    tail, half = low & (2**tail_bits - 1), 2 ** (tail_bits - 1)
    inexact = ~wide.is_zero(tuple(rest)) if rest else jnp.zeros_like(low, bool)
    up = (tail > half) | ((tail == half) & (inexact | (kept[0] & 1 == 1)))
    return Float64(is_negative, exponent + wide.WORD * len(rest) + tail_bits, wide.increment(kept, up))


def _bit(condition: jax.Array) -> jax.Array:
    return condition.astype(jnp.uint32)
