"""Broadcasting, and ranks aligned as in NumPy, as explicit steps, which JAX's strict settings allow."""

import jax
from jax import lax


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether `shape`, which has the rank of `to`, broadcasts to it through sizes of 1."""
    return len(shape) == len(to) and all(size in (1, full) for size, full in zip(shape, to, strict=True))


def aligned(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """`shape` with leading sizes of 1, up to `rank` sizes."""
    return (1,) * (rank - len(shape)) + shape


def to_rank(x: jax.Array, rank: int) -> jax.Array:
    """`x` with leading dimensions of size 1, up to `rank` dimensions."""
    return lax.expand_dims(x, range(rank - x.ndim)) if x.ndim < rank else x


def shape_along(axis: int | None, rank: int) -> list[int]:
    """The shape in which a vector broadcasts along `axis` of a tensor of `rank` dimensions; [] for a scalar."""
    return [] if axis is None else [-1 if dimension == axis else 1 for dimension in range(rank)]
