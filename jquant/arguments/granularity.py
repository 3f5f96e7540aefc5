"""How finely a tensor is quantized: the caller's arguments, and scales and zero points that fit them."""

import sys

import jax

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.descriptor import Names, Signature
from jquant.arguments.naming import argument, message
from jquant.arguments.statics import dimension, integer
from jquant.arithmetic.broadcasting import shape_along
from jquant.formulas.granularity import Granularity


def granularity_of(operator: str, axis: int | None, block_size: int | None, rank: int) -> Granularity:
    """The granularity that a caller describes, for a tensor of `rank` dimensions."""
    if axis is not None:
        axis = dimension(operator, axis, rank, optional=True)
    if block_size is not None:
        block_size = integer(operator, "block_size", block_size, range(1, sys.maxsize), "a positive integer, or None")
        _require_axis_of_blocks(operator, axis, block_size)
    return Granularity(axis, block_size)


@once_for_each_signature
def _require_axis_of_blocks(operator: str, axis: int | None, block_size: int) -> None:
    require(axis is not None, message(operator, "block_size", f"is {block_size}, which needs the axis of the blocks"))


def align(
    granularity: Granularity,
    operator: str,
    names: Names,
    sizes: tuple[int, ...],
    scale: jax.Array,
    zero_point: jax.Array | None,
) -> tuple[jax.Array, jax.Array | None, dict[str, Signature | None]]:
    """`scale` and `zero_point`, checked, in the rank of a tensor of shape `sizes`; and what each covers of it, by name.

    Scalars stay scalars.
    """
    scale, covered = _aligned(granularity, operator, names, names.scale, sizes, scale)
    if zero_point is None:
        return scale, None, {names.scale: covered, names.zero_point: None}
    zero_point, also_covered = _aligned(granularity, operator, names, names.zero_point, sizes, zero_point)
    return scale, zero_point, {names.scale: covered, names.zero_point: also_covered}


def _aligned(
    granularity: Granularity, operator: str, names: Names, name: str, sizes: tuple[int, ...], scale: jax.Array
) -> tuple[jax.Array, Signature]:
    if scale.ndim == 0:
        return scale, Signature(scale.shape, scale.dtype)
    axis, block_size = granularity
    if axis is None:
        _require_an_axis(operator, name, sizes, scale.shape)
        return scale, Signature(scale.shape, scale.dtype)
    if block_size is None:
        _require_one_per_index(operator, names.tensor, name, sizes, scale.shape, axis)
        scale = scale.reshape(shape_along(axis, len(sizes)))
        return scale, Signature(scale.shape, scale.dtype)
    _require_one_per_block(operator, names.tensor, name, sizes, scale.shape, axis, block_size)
    covered = *scale.shape[:axis], sizes[axis], *scale.shape[axis + 1 :]
    return scale, Signature(covered, scale.dtype)


@once_for_each_signature
def _require_one_per_index(
    operator: str, tensor: str, name: str, sizes: tuple[int, ...], shape: tuple[int, ...], axis: int
) -> None:
    fits = " or ".join(f"axis={axis}" for axis in _axes_of(shape, sizes))
    remedy = f"; {fits} would fit" if fits else ""
    reason = f"{argument(operator, tensor)} has shape {sizes}{remedy}"
    text = f"has shape {shape}; with axis={axis} and no block_size it must be ({sizes[axis]},): {reason}"
    require(shape == (sizes[axis],), message(operator, name, text))


@once_for_each_signature
def _require_one_per_block(
    operator: str, tensor: str, name: str, sizes: tuple[int, ...], shape: tuple[int, ...], axis: int, block_size: int
) -> None:
    blocks = -(-sizes[axis] // block_size)
    wanted = f"{len(sizes)} dimensions, and size {blocks} along that axis: {argument(operator, tensor)} has shape {sizes}"
    text = f"has shape {shape}; with axis={axis} and block_size={block_size} it must have {wanted}"
    require(len(shape) == len(sizes) and shape[axis] == blocks, message(operator, name, text))


@once_for_each_signature
def _require_an_axis(operator: str, name: str, sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Asserts that a vector comes with an axis if its axis would have to be guessed."""
    if len(shape) == 1 < len(sizes):
        fits = _axes_of(shape, sizes)
        hints = (
            f"dimension {axis}, pass axis={axis}, or shape {(*(1,) * axis, sizes[axis], *(1,) * (len(sizes) - axis - 1))}"
            for axis in fits
        )
        text = f"has shape {shape}, input has {sizes}: for one value per index of {'; for '.join(hints)}"
        require(not fits, message(operator, name, text))


def _axes_of(shape: tuple[int, ...], sizes: tuple[int, ...]) -> list[int]:
    """The dimensions along which a vector has one value per index."""
    return [axis for axis, size in enumerate(sizes) if shape == (size,)]
