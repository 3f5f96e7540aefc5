"""int8 instead of uint8: the same integers minus 128, by flipping their sign bit."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.lowering.bitcast import bitcast


def to_int8(x: jax.Array) -> jax.Array:
    """`x` if it is int8, and ``x - 128`` if it is uint8."""
    return x if x.dtype == jnp.int8 else bitcast(x ^ np.uint8(0x80), jnp.int8)


def from_int8(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """The inverse of `to_int8`, for the original `dtype`."""
    return x if dtype == jnp.int8 else bitcast(x, jnp.uint8) ^ np.uint8(0x80)
