"""Unsigned 8-, 4- or 2-bit integers that share bytes along the last dimension, the first in the lowest bits."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def in_each_byte(packed: jax.Array, bits: int) -> list[jax.Array]:
    """The first integer of every byte, the second of every byte, and so on: uint8, in the shape of `packed`."""
    if bits == 8:
        return [packed]
    return [(packed >> np.uint8(place)) & np.uint8(2**bits - 1) for place in range(0, 8, bits)]


def unpacked(packed: jax.Array, bits: int) -> jax.Array:
    """All integers in order: uint8, with 8 / `bits` times the last size."""
    count = 8 // bits
    shifts = lax.broadcasted_iota(jnp.uint8, (*packed.shape, count), packed.ndim) * np.uint8(bits)
    integers = (lax.broadcast_in_dim(packed, shifts.shape, range(packed.ndim)) >> shifts) & np.uint8(2**bits - 1)
    return integers.reshape(*packed.shape[:-1], packed.shape[-1] * count)
