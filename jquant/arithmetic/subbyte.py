"""Unsigned 8-, 4- or 2-bit integers packed into bytes along the last dimension, the first in the lowest bits."""

from typing import TypeVar

import jax
import numpy as np

_Array = TypeVar("_Array", np.ndarray, jax.Array)


def in_each_byte(packed: jax.Array, bits: int) -> list[jax.Array]:
    """The first integer of every byte, the second of every byte, and so on: uint8, in the shape of `packed`."""
    if bits == 8:
        return [packed]
    return [(packed >> np.uint8(place)) & np.uint8(2**bits - 1) for place in range(0, 8, bits)]


def unpacked(packed: _Array, bits: int) -> _Array:
    """All integers in order: uint8, with 8 / `bits` times the last size."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    integers = (packed[..., None] >> shifts.reshape(*(1,) * packed.ndim, -1)) & np.uint8(2**bits - 1)
    return integers.reshape(*packed.shape[:-1], packed.shape[-1] * shifts.size)
