"""Broadcasting and rank alignment as in NumPy, in explicit steps, which JAX's strict promotion settings allow."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether `shape` has the rank of `to`, and broadcasts to it by sizes of 1."""
    return len(shape) == len(to) and all(size in (1, target) for size, target in zip(shape, to, strict=True))


def broadcast(*arrays: jax.Array) -> list[jax.Array]:
    """The arrays in their common shape, as `jax.numpy.broadcast_arrays` returns them, but faster to trace."""
    if any(any(jax.typeof(x).sharding.spec) for x in arrays):  # over explicit axes, which need a common sharding, too
        return jnp.broadcast_arrays(*arrays)
    shape = lax.broadcast_shapes(*(x.shape for x in arrays))
    return [
        x if x.shape == shape else lax.broadcast_in_dim(x, shape, range(len(shape) - x.ndim, len(shape))) for x in arrays
    ]


def elementwise(operation: Callable[[jax.Array, jax.Array], jax.Array], a: jax.Array, b: jax.Array) -> jax.Array:
    """A binary operation of `jax.lax` on operands that broadcast."""
    return operation(a, b) if a.shape == b.shape else operation(*broadcast(a, b))


def aligned(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """`shape` with leading sizes of 1 added, up to `rank` sizes."""
    return (1,) * (rank - len(shape)) + shape


def to_rank(x: jax.Array, rank: int) -> jax.Array:
    """`x` with leading dimensions of size 1 added, up to `rank` dimensions."""
    return lax.expand_dims(x, range(rank - x.ndim)) if x.ndim < rank else x


def shape_along(axis: int | None, rank: int) -> list[int]:
    """The shape in which a vector broadcasts along `axis` of a tensor of `rank` dimensions; [] for a scalar."""
    return [] if axis is None else [-1 if dimension == axis else 1 for dimension in range(rank)]
