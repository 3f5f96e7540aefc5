"""How finely a tensor is quantized: one scale for all of it, one for each slice along an axis, or one for each block.

A zero point has the choices of a scale.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jquant import ranges
from jquant.descriptor import Signature, require, require_axis
from jquant.operands import Names, Operand


class Granularity(NamedTuple):
    """Along which dimension scales differ (None: as their sizes say), and for how many elements each of them holds."""

    axis: int | None
    block_size: int | None

    def align(
        self, operator: str, names: Names, sizes: tuple[int, ...], scale: Operand, zero_point: Operand | None
    ) -> tuple[Operand, Operand | None, dict[str, Signature | None]]:
        """`scale` and `zero_point` with the rank of a tensor of these `sizes`, checked, and what each covers of it, by name.

        Scalars stay scalars.
        """
        if self.axis is not None:
            require_axis(operator, self.axis, len(sizes))
        if self.block_size is not None:
            require(self.axis is not None, f"{operator}: block_size={self.block_size} needs the axis of the blocks")
            require(self.block_size > 0, f"{operator}: block_size is {self.block_size}; it must be positive, or None")
        scale, covered = self._aligned(operator, names.scale, sizes, scale)
        if zero_point is None:
            return scale, None, {names.scale: covered, names.zero_point: None}
        zero_point, also_covered = self._aligned(operator, names.zero_point, sizes, zero_point)
        return scale, zero_point, {names.scale: covered, names.zero_point: also_covered}

    def _aligned(self, operator: str, name: str, sizes: tuple[int, ...], scale: Operand) -> tuple[Operand, Signature]:
        covered = scale.shape
        if self.axis is not None and scale.ndim > 0:
            given = f"{operator}: {name} has {scale.ndim} dimensions, sizes {scale.shape}; with axis={self.axis}"
            if self.block_size is None:
                require(scale.ndim == 1, f"{given} it must have 1")
                scale = scale.reshape(ranges.sizes(self.axis, len(sizes)))
                covered = scale.shape
            else:
                size = sizes[self.axis]
                blocks = -(-size // self.block_size)
                matches = scale.ndim == len(sizes) and scale.shape[self.axis] == blocks
                wanted = f"it must have {len(sizes)}, and a size of {blocks} there"
                require(matches, f"{given} and block_size={self.block_size} {wanted}")
                covered = (*covered[: self.axis], size, *covered[self.axis + 1 :])
        return scale, Signature(covered, scale.dtype)

    def expand(self, scale: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
        """`scale`, aligned, in sizes that broadcast to `sizes`: that of a block as often as the block has elements."""
        if self.axis is None or self.block_size is None or scale.ndim == 0:
            return scale
        repeated = jnp.repeat(scale, self.block_size, self.axis)
        return lax.slice_in_dim(repeated, 0, sizes[self.axis], axis=self.axis)  # the last block may be partial
