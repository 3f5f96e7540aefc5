"""Arrays and packed weights for calls."""

import functools
import math

import jax.numpy as jnp
import numpy as np

import jquant


def ints(dtype: str, *shape: int) -> np.ndarray:
    return np.arange(math.prod(shape)).reshape(shape).astype(jnp.dtype(dtype))


def floats(*shape: int) -> np.ndarray:
    return (np.arange(math.prod(shape)).reshape(shape) / 8 - 0.25).astype(np.float32)


@functools.cache
def packed_matrix(zero_point: int | None = None) -> jquant.PackedMatrix:
    return jquant.pack_matrix(ints("int8", 3, 4), zero_point)
