"""Operands of products with block scales, drawn at random."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import jquant
from jquant.packed.block_matrix import PackedBlockMatrix

LIMITS = {"int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255)}


class Operands(NamedTuple):
    """A and B with their zero points, and the scales of B."""

    a: np.ndarray
    a_zero_point: np.ndarray | None
    b: np.ndarray
    scale: np.ndarray
    b_zero_point: np.ndarray | None

    def packed(self, block_size: int, **options) -> PackedBlockMatrix:
        """B, packed with its scales and zero points."""
        return jquant.pack_matrix(self.b, self.b_zero_point, scale=self.scale, block_size=block_size, **options)


def integers(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Integers of `dtype`; some rows have only one end of its range."""
    low, high = LIMITS[dtype]
    values = random.integers(low, high, shape, endpoint=True)
    at_end = random.random((*shape[:-1], 1)) < 0.2
    return np.where(at_end, random.choice([low, high], (*shape[:-1], 1)), values).astype(jnp.dtype(dtype))


def padded(a: np.ndarray, a_zero_point: np.ndarray | None, padding: int) -> np.ndarray:
    """A in whole blocks, as the primitive hands it to a kernel."""
    fill = np.zeros((), a.dtype) if a_zero_point is None else a_zero_point
    return np.concatenate([a, np.broadcast_to(fill, (*a.shape[:-1], padding))], axis=-1)
