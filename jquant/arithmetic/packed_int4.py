"""Words of 16 bits that hold four unsigned 4-bit integers each, the first in the lowest bits, along the rows of a matrix."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

PER_WORD = 4
SIGN_BITS = np.uint16(0x8888)
"""The highest bit of each integer. Flipping it adds 8 to a signed integer, or subtracts 8 from an unsigned one."""


def packed(integers: jax.Array) -> jax.Array:
    """Packs unsigned integers, in uint16, into words: (..., 4 * words, N) becomes (..., words, N)."""
    *batch, rows, n = integers.shape
    integers = integers.reshape(*batch, rows // PER_WORD, PER_WORD, n)
    return functools.reduce(operator.or_, (integers[..., place, :] << _shift(place) for place in range(PER_WORD)))


def unpacked(words: jax.Array) -> jax.Array:
    """The integers in order, in uint16: (..., words, N) becomes (..., 4 * words, N)."""
    *batch, count, n = words.shape
    in_order = jnp.stack([at(words, place) for place in range(PER_WORD)], axis=-2)
    return in_order.reshape(*batch, PER_WORD * count, n)


def by_place(words: jax.Array) -> jax.Array:
    """The first integers of all words, the second of all, and so on, in uint16, of shape (..., 4, words, N)."""
    axis = words.ndim - 2
    places = lax.broadcasted_iota(jnp.uint16, (*(1,) * axis, PER_WORD, 1, 1), axis)
    return (words[..., None, :, :] >> (places * _shift(1))) & np.uint16(15)


def signed_by_place(words: jax.Array) -> list[jax.Array]:
    """The first integers of all words, the second of all, and so on, as signed numbers, in int16."""
    return [words.astype(jnp.int16) << np.int16(12 - 4 * place) >> np.int16(12) for place in range(PER_WORD)]


def at(words: jax.Array, place: int) -> jax.Array:
    """The integers at one place of each word, in uint16."""
    shifted = from_place(words, place)
    return shifted & np.uint16(15) if place < PER_WORD - 1 else shifted


def from_place(words: jax.Array, place: int) -> jax.Array:
    """The integers from one place of each word upwards, as one number in uint16."""
    return words >> _shift(place) if place else words


def _shift(place: int) -> np.uint16:
    return np.uint16(4 * place)
