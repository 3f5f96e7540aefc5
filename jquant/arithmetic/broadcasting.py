"""Shapes that broadcast, and ranks aligned as NumPy does it: in a step of its own, which JAX's strict settings allow."""

import jax
from jax import lax


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether sizes of 1 in `shape`, which has the rank of `to`, make it that."""
    return len(shape) == len(to) and all(size in (1, full) for size, full in zip(shape, to, strict=True))


def aligned(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """`shape` with sizes of 1 in front, up to `rank` of them."""
    return (1,) * (rank - len(shape)) + shape


def to_rank(x: jax.Array, rank: int) -> jax.Array:
    """`x` with dimensions of size 1 in front, up to `rank` dimensions."""
    return lax.expand_dims(x, range(rank - x.ndim)) if x.ndim < rank else x


def sizes_along(axis: int | None, rank: int) -> list[int]:
    """What to reshape a vector to, for it to broadcast along `axis` of a tensor of `rank` dimensions; [] for a scalar."""
    return [] if axis is None else [-1 if dimension == axis else 1 for dimension in range(rank)]
