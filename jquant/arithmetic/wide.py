"""Integers of more than 32 bits, which JAX has no type for unless ``jax_enable_x64`` is set.

A number is its 32-bit words, the lowest first, modulo ``2 ** (32 * len(words))``. A negative number is its two's
complement.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.lowering import recording

Words = tuple[jax.Array, ...]
_HALF = np.uint32(0xFFFF)


def select(condition: jax.Array, a: Words, b: Words) -> Words:
    """`a` where the condition holds, and `b` elsewhere."""
    return tuple(jnp.where(condition, x, y) for x, y in zip(a, b, strict=True))


def is_negative(a: Words) -> jax.Array:
    """``a < 0``"""
    return a[-1] >> 31 == 1


def add(a: Words, b: Words) -> Words:
    """``a + b``"""
    (first, *a_rest), (second, *b_rest) = a, b
    total = [first + second]
    carry = total[0] < first
    for x, y in zip(a_rest, b_rest, strict=True):
        partial = x + y
        total.append(partial + carry.astype(jnp.uint32))
        carry = (partial < x) | (total[-1] < partial)
    return tuple(total)


def negate(a: Words) -> Words:
    """``-a``"""
    total, carry = [], jnp.bool_(True)
    for word in a:
        total.append(~word + carry.astype(jnp.uint32))
        carry = carry & (word == 0)
    return tuple(total)


def product(a: jax.Array, b: Words) -> Words:
    """``a * b`` of a word and a non-negative number, in all its words."""
    total, carry = [], jnp.uint32(0)
    for word in b:
        low = a * word
        total.append(low + carry)
        carry = _high_word(a, word) + (total[-1] < low).astype(jnp.uint32)
    return *total, carry


def _high_word(a: jax.Array, b: jax.Array) -> jax.Array:
    """``a * b >> 32``, by halves of 16 bits: no product or sum of them needs more than 32 bits.

    XLA cannot partition jax 0.12's `lax.mulhi` over a mesh.
    """
    a_low, a_high, b_low, b_high = a & _HALF, a >> 16, b & _HALF, b >> 16
    middle = a_high * b_low + ((a_low * b_low) >> 16)
    other_middle = a_low * b_high + (middle & _HALF)
    return a_high * b_high + (middle >> 16) + (other_middle >> 16)


def shift_left(a: Words, count: jax.Array) -> Words:
    """``a << count``, for a count from 0 to the number of bits."""
    zero = jnp.uint32(0)
    for words in _powers_of_two(a):
        a = select((count >> 5) & words != 0, ((zero,) * words + a)[: len(a)], a)
    bits = (count & 31).astype(jnp.uint32)
    # In two steps, because the result of a shift by 32 differs between platforms.
    return tuple((word << bits) | ((lower >> 1) >> (31 - bits)) for word, lower in zip(a, (zero, *a[:-1]), strict=True))


def shift_right(a: Words, count: jax.Array) -> Words:
    """``a >> count`` of a non-negative number, for a count from 0 to the number of bits."""
    zero = jnp.uint32(0)
    for words in _powers_of_two(a):
        a = select((count >> 5) & words != 0, (a + (zero,) * words)[words:], a)
    bits = (count & 31).astype(jnp.uint32)
    return tuple((word >> bits) | ((upper << 1) << (31 - bits)) for word, upper in zip(a, (*a[1:], zero), strict=True))


def _powers_of_two(a: Words) -> list[int]:
    """Numbers of words: any shift by up to all words of `a` is a sum of some of them."""
    return [1 << place for place in range(len(a).bit_length())]


def leading_zeros_of_word(word: jax.Array) -> jax.Array:
    """How many bits above the highest 1 are 0, in int32."""
    if not recording.is_active():  # ONNX does not count zeros
        return lax.clz(word).astype(jnp.int32)
    zeros = jnp.zeros_like(word, jnp.int32)
    for count in (16, 8, 4, 2, 1):
        is_small = word < np.uint32(1 << (32 - count))
        zeros += jnp.where(is_small, np.int32(count), np.int32(0))
        word = jnp.where(is_small, word << np.uint32(count), word)
    return zeros + (word == 0).astype(jnp.int32)


def leading_zeros(a: Words) -> jax.Array:
    """How many bits above the highest 1 are 0, in int32."""
    *rest, word = a
    zeros = leading_zeros_of_word(word)
    return jnp.where(word == 0, 32 + leading_zeros(tuple(rest)), zeros) if rest else zeros
