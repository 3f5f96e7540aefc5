"""How finely a tensor is quantized: one scale for all of it, one for each slice along an axis, or one for each block.

A zero point has the choices of a scale.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jquant import ranges
from jquant.descriptor import Signature, require, require_axis
from jquant.operands import Operand


class Granularity(NamedTuple):
    """Along which dimension scales differ (None: as their sizes say), and for how many elements each of them holds."""

    axis: int | None
    block_size: int | None

    def check(self, operator: str, rank: int) -> None:
        """Asserts that a tensor of that rank can be divided so."""
        if self.axis is not None:
            require_axis(operator, self.axis, rank)
        if self.block_size is not None:
            require(self.axis is not None, f"{operator}: block_size={self.block_size} needs the axis of the blocks")
            require(self.block_size > 0, f"{operator}: block_size is {self.block_size}; it must be positive, or None")

    def align(
        self, operator: str, name: str, scale: Operand | None, sizes: tuple[int, ...]
    ) -> tuple[Operand | None, Signature | None]:
        """`scale` with the rank of the tensor that has these `sizes`, and what it covers of that; scalars stay scalars."""
        if scale is None:
            return None, None
        covered = list(scale.shape)
        if self.axis is not None and scale.ndim > 0:
            given = f"{operator}: {name} has {scale.ndim} dimensions, sizes {scale.shape}; with axis={self.axis}"
            if self.block_size is None:
                require(scale.ndim == 1, f"{given} it must have 1")
                scale = scale.reshape(ranges.sizes(self.axis, len(sizes)))
                covered = scale.shape
            else:
                size = sizes[self.axis]
                blocks = -(-size // self.block_size)
                wanted = f"it must have {len(sizes)}, and a size of {blocks} there"
                matches = scale.ndim == len(sizes) and scale.shape[self.axis] == blocks
                require(matches, f"{given} and block_size={self.block_size} {wanted}")
                covered[self.axis] = size
        return scale, Signature(tuple(covered), scale.dtype)

    def expand(self, scale: jax.Array | None, sizes: tuple[int, ...]) -> jax.Array | None:
        """`scale`, aligned, in sizes that broadcast to `sizes`: that of a block as often as the block has elements."""
        if scale is None or scale.ndim == 0 or self.block_size is None:
            return scale
        repeated = jnp.repeat(scale, self.block_size, self.axis)
        return lax.slice_in_dim(repeated, 0, sizes[self.axis], axis=self.axis)  # the last block may be partial
