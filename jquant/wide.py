"""Integers wider than 32 bits, which JAX has no type for unless ``jax_enable_x64`` is set.

A number is its words of 32 bits, the lowest first, and counts modulo ``2 ** (32 * len(words))``: a negative one is the
two's complement.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Words = tuple[jax.Array, ...]

WORD = 32
_HALF = np.uint32(0xFFFF)


def zeros_like(word: jax.Array, count: int) -> Words:
    return (jnp.zeros_like(word),) * count


def is_zero(a: Words) -> jax.Array:
    zero = jnp.ones_like(a[0], bool)
    for word in a:
        zero &= word == 0
    return zero


def select(condition: jax.Array, a: Words, b: Words) -> Words:
    return tuple(jnp.where(condition, x, y) for x, y in zip(a, b, strict=True))


def add(a: Words, b: Words) -> Words:
    """``a + b``"""
    carry, total = jnp.zeros_like(a[0]), []
    for x, y in zip(a, b, strict=True):
        partial = x + y
        word = partial + carry
        carry = ((partial < x) | (word < partial)).astype(jnp.uint32)
        total.append(word)
    return tuple(total)


def increment(a: Words, by: jax.Array) -> Words:
    """``a + by``, of a Boolean or a word"""
    return add(a, (by.astype(jnp.uint32), *zeros_like(a[0], len(a) - 1)))


def negate(a: Words) -> Words:
    """``-a``"""
    return increment(tuple(~word for word in a), jnp.ones_like(a[0]))


def is_negative(a: Words) -> jax.Array:
    return a[-1] >> 31 == 1


def product(a: Words, b: Words) -> Words:
    """``a * b`` of numbers that are not negative, in all its words."""
    count = len(a) + len(b)
    total = zeros_like(a[0], count)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            total = add(total, (*zeros_like(x, i + j), *_word_product(x, y), *zeros_like(x, count - i - j - 2)))
    return total


def _word_product(a: jax.Array, b: jax.Array) -> Words:
    """By halves: no product or sum of them needs more than 32 bits."""
    a_low, a_high, b_low, b_high = a & _HALF, a >> 16, b & _HALF, b >> 16
    low, one, other = a_low * b_low, a_low * b_high, a_high * b_low
    middle = (low >> 16) + (one & _HALF) + (other & _HALF)
    return (low & _HALF) | (middle << 16), a_high * b_high + (one >> 16) + (other >> 16) + (middle >> 16)


def shift_left(a: Words, count: jax.Array) -> Words:
    """``a << count``, for a count from 0 to the number of bits."""
    size = 1
    while size <= len(a):  # whole words, by the binary digits of their number
        a = select((count >> 5) & size != 0, (*zeros_like(a[0], size), *a[: len(a) - size]), a)
        size *= 2
    bits = (count & 31).astype(jnp.uint32)
    below = (*zeros_like(a[0], 1), *a[:-1])
    # In two steps, because what a shift by 32 gives is the platform's choice.
    return tuple((word << bits) | ((lower >> 1) >> (31 - bits)) for word, lower in zip(a, below, strict=True))


def shift_right(a: Words, count: jax.Array) -> tuple[Words, Words]:
    """``a >> count`` of a number that is not negative, and what falls out, as a fraction of ``1 << 32 * len(a)``."""
    both = shift_left((*a, *zeros_like(a[0], len(a))), WORD * len(a) - count)
    return both[len(a) :], both[: len(a)]


def leading_zeros(a: Words) -> jax.Array:
    count = jnp.full_like(a[0], WORD * len(a), jnp.int32)
    for index, word in enumerate(reversed(a)):
        first = count == WORD * len(a)
        count = jnp.where(first & (word != 0), WORD * index + lax.clz(word).astype(jnp.int32), count)
    return count
