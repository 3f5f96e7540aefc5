"""How `PackedMatrix` is made of a matrix."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import signs
from jquant.packed_matrix import PackedMatrix

LARGEST_BLOCK, SMALLEST_BLOCK = 256, 32


def pack(b: jax.Array, zero_point: jax.Array | None, block_size: int) -> PackedMatrix:
    """`b` of shape (..., K, N), its zero point of shape (..., 1, 1) or (..., 1, N), in blocks that divide K."""
    data = signs.to_int8(b)
    *batch, k, n = b.shape
    blocks = data.reshape(*batch, k // block_size, block_size, n)
    if zero_point is not None:
        zero_point = jnp.broadcast_to(zero_point, (*batch, *zero_point.shape[-2:]))
    block_sums = jnp.sum(blocks, axis=-2, dtype=jnp.int32)
    return PackedMatrix(jnp.swapaxes(data, -1, -2), block_sums, zero_point, np.dtype(b.dtype))


def block_size_for(k: int) -> int:
    """The largest divisor of `k` that makes a good block, or `k` itself where there is none."""
    return next((size for size in range(LARGEST_BLOCK, SMALLEST_BLOCK - 1, -1) if k % size == 0), max(k, 1))
