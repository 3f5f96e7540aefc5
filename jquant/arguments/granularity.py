"""How finely a tensor is quantized: the caller's arguments, and scales and zero points that fit them."""

import sys

import jax

from jquant.arguments.descriptor import Names, Signature, require
from jquant.arguments.statics import dimension, integer
from jquant.arithmetic.broadcasting import shape_along
from jquant.formulas.granularity import Granularity


def granularity_of(operator: str, axis: int | None, block_size: int | None, rank: int) -> Granularity:
    """The granularity that a caller describes, for a tensor of `rank` dimensions."""
    if axis is not None:
        axis = dimension(operator, axis, rank, optional=True)
    if block_size is not None:
        block_size = integer(operator, "block_size", block_size, range(1, sys.maxsize), "a positive integer, or None")
        require(axis is not None, f"{operator}: block_size={block_size} needs the axis of the blocks")
    return Granularity(axis, block_size)


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
    covered = scale.shape
    if scale.ndim > 0 and granularity.axis is None:
        _require_an_axis(operator, name, sizes, scale)
    elif scale.ndim > 0 and granularity.axis is not None:
        given = f"{operator}: {name} has shape {scale.shape}; with axis={granularity.axis}"
        size, beside = sizes[granularity.axis], f"{names.tensor} has shape {sizes}"
        if granularity.block_size is None:
            fits = " or ".join(f"axis={axis}" for axis in _axes_of(scale, sizes))
            remedy = f"; {fits} would fit" if fits else ""
            require(scale.shape == (size,), f"{given} and no block_size it must be ({size},): {beside}{remedy}")
            scale = scale.reshape(shape_along(granularity.axis, len(sizes)))
            covered = scale.shape
        else:
            blocks = -(-size // granularity.block_size)
            matches = scale.ndim == len(sizes) and scale.shape[granularity.axis] == blocks
            wanted = f"it must have {len(sizes)} dimensions, and size {blocks} along that axis: {beside}"
            require(matches, f"{given} and block_size={granularity.block_size} {wanted}")
            covered = (*covered[: granularity.axis], size, *covered[granularity.axis + 1 :])
    return scale, Signature(covered, scale.dtype)


def _axes_of(scale: jax.Array, sizes: tuple[int, ...]) -> list[int]:
    """The dimensions along which a vector has one value per index."""
    return [axis for axis, size in enumerate(sizes) if scale.shape == (size,)]


def _require_an_axis(operator: str, name: str, sizes: tuple[int, ...], scale: jax.Array) -> None:
    """Asserts that a vector comes with an axis if its axis would have to be guessed."""
    if scale.ndim == 1 < len(sizes):
        fits = _axes_of(scale, sizes)
        ways = (f"axis={axis}, or shape {(*(1,) * axis, sizes[axis], *(1,) * (len(sizes) - axis - 1))}" for axis in fits)
        message = f"{operator}: {name} has shape {scale.shape}, InputTensor has {sizes}: for one value per index of "
        others = "; for ".join(f"dimension {axis}, pass {way}" for axis, way in zip(fits, ways, strict=True))
        require(not fits, f"{message}{others}")
