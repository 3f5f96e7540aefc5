"""How finely a tensor is quantized: one scale for all of it, one for each slice along an axis, or one for each block.

A zero point has the choices of a scale.
"""

import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jquant import ranges
from jquant.descriptor import Signature, require
from jquant.operands import Names, Operand
from jquant.statics import dimension, integer


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
        scale, covered = self._aligned(operator, names, names.scale, sizes, scale)
        if zero_point is None:
            return scale, None, {names.scale: covered, names.zero_point: None}
        zero_point, also_covered = self._aligned(operator, names, names.zero_point, sizes, zero_point)
        return scale, zero_point, {names.scale: covered, names.zero_point: also_covered}

    def _aligned(
        self, operator: str, names: Names, name: str, sizes: tuple[int, ...], scale: Operand
    ) -> tuple[Operand, Signature]:
        covered = scale.shape
        if scale.ndim > 0 and self.axis is None:
            _require_an_axis(operator, name, sizes, scale)
        elif scale.ndim > 0 and self.axis is not None:
            given = f"{operator}: {name} has {scale.ndim} dimensions, sizes {scale.shape}; with axis={self.axis}"
            size, beside = sizes[self.axis], f"{names.tensor} has shape {sizes}"
            if self.block_size is None:
                require(scale.shape == (size,), f"{given} and no block_size it must have 1, of size {size}: {beside}")
                scale = scale.reshape(ranges.sizes(self.axis, len(sizes)))
                covered = scale.shape
            else:
                blocks = -(-size // self.block_size)
                matches = scale.ndim == len(sizes) and scale.shape[self.axis] == blocks
                wanted = f"it must have {len(sizes)}, and a size of {blocks} there: {beside}"
                require(matches, f"{given} and block_size={self.block_size} {wanted}")
                covered = (*covered[: self.axis], size, *covered[self.axis + 1 :])
        return scale, Signature(covered, scale.dtype)

    def expand(self, scale: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
        """`scale`, aligned, in sizes that broadcast to `sizes`: that of a block as often as the block has elements."""
        if self.axis is None or self.block_size is None or scale.ndim == 0:
            return scale
        repeated = jnp.repeat(scale, self.block_size, self.axis)
        return lax.slice_in_dim(repeated, 0, sizes[self.axis], axis=self.axis)  # the last block may be partial


def granularity_of(operator: str, axis: int | None, block_size: int | None, rank: int) -> Granularity:
    """That of a tensor of `rank` dimensions, as a caller describes it."""
    if axis is not None:
        axis = dimension(operator, axis, rank, optional=True)
    if block_size is not None:
        block_size = integer(operator, "block_size", block_size, range(1, sys.maxsize), "a positive integer, or None")
        require(axis is not None, f"{operator}: block_size={block_size} needs the axis of the blocks")
    return Granularity(axis, block_size)


def _require_an_axis(operator: str, name: str, sizes: tuple[int, ...], scale: Operand) -> None:
    """Asserts that a vector is not left to a guess at its axis, where it could be meant for one."""
    if scale.ndim == 1 < len(sizes):
        fits = [axis for axis, size in enumerate(sizes) if scale.shape == (size,)]
        ways = (f"axis={axis}, or shape {(*(1,) * axis, sizes[axis], *(1,) * (len(sizes) - axis - 1))}" for axis in fits)
        message = f"{operator}: {name} has sizes {scale.shape}, InputTensor has {sizes}: for a value for each index of "
        others = "; of ".join(f"dimension {axis} pass {way}" for axis, way in zip(fits, ways, strict=True))
        require(not fits, f"{message}{others}")
