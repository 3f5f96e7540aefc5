"""Unsigned integers of up to 8 bits packed into bytes, the first in the lowest bits."""

import functools
import math
import operator
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

_Array = TypeVar("_Array", np.ndarray, jax.Array)


def packed(integers: jax.Array, bits: int, axis: int) -> jax.Array:
    """Integers of uint8, of which only the lowest `bits` are set, packed along a dimension; zeros fill the last bytes.

    Of 6 bits, four fill three bytes.
    """
    if bits == 8:
        return integers
    axis, count, width = axis % integers.ndim, _in_group(bits), _in_group(bits) * bits // 8
    groups = -(-integers.shape[axis] // count)

    def shifted(place: int) -> jax.Array:
        # By strides: on TPUs, a last dimension of the integers of a byte would be padded to 128.
        each = integers[(*(slice(None),) * axis, slice(place, None, count))]
        each = each if width == 1 else each.astype(jnp.uint32)
        padding = [(0, groups - each.shape[axis] if dimension == axis else 0) for dimension in range(each.ndim)]
        return jnp.pad(each << each.dtype.type(place * bits), padding)

    word = functools.reduce(operator.or_, map(shifted, range(count)))
    if width == 1:
        return word
    parts = [(word >> np.uint32(8 * place)).astype(jnp.uint8) for place in range(width)]
    return jnp.stack(parts, axis + 1).reshape(*word.shape[:axis], -1, *word.shape[axis + 1 :])


def unpacked_along(packed: jax.Array, bits: int, axis: int, size: int) -> jax.Array:
    """The first `size` integers along a dimension that `packed` packed."""
    if bits == 8:
        return packed
    axis, count, width = axis % packed.ndim, _in_group(bits), _in_group(bits) * bits // 8
    parts = [
        jax.lax.slice_in_dim(packed, place, None, width, axis).astype(jnp.uint8 if width == 1 else jnp.uint32)
        for place in range(width)
    ]
    word = functools.reduce(operator.or_, (part << part.dtype.type(8 * place) for place, part in enumerate(parts)))
    mask = word.dtype.type(2**bits - 1)
    integers = [((word >> word.dtype.type(place * bits)) & mask).astype(jnp.uint8) for place in range(count)]
    joined = jnp.stack(integers, axis + 1).reshape(*word.shape[:axis], -1, *word.shape[axis + 1 :])
    return jax.lax.slice_in_dim(joined, 0, size, axis=axis)


def _in_group(bits: int) -> int:
    """How many integers fill whole bytes."""
    return math.lcm(bits, 8) // bits


def in_each_byte(packed: jax.Array, bits: int) -> list[jax.Array]:
    """The first integer of every byte, the second of every byte, and so on: uint8, in the shape of `packed`."""
    if bits == 8:
        return [packed]
    return [(packed >> np.uint8(place)) & np.uint8(2**bits - 1) for place in range(0, 8, bits)]


def unpacked(packed: _Array, bits: int) -> _Array:
    """All integers of 2, 4 or 8 bits, packed along the last dimension: uint8, with 8 / `bits` times the last size."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    integers = (packed[..., None] >> shifts.reshape(*(1,) * packed.ndim, -1)) & np.uint8(2**bits - 1)
    return integers.reshape(*packed.shape[:-1], packed.shape[-1] * shifts.size)
