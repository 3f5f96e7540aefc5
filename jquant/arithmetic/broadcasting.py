"""Broadcasting and rank alignment as in NumPy, in explicit steps, which JAX's strict promotion settings allow."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether `shape` has the rank of `to`, and broadcasts to it by sizes of 1."""
    return len(shape) == len(to) and all(size in (1, target) for size, target in zip(shape, to, strict=True))


def broadcast(*arrays: jax.Array) -> list[jax.Array]:
    """The arrays in their common shape, as `jax.numpy.broadcast_arrays` returns them, but faster to trace."""
    if any(any(jax.typeof(x).sharding.spec) for x in arrays):
        return _in_common_sharding(jnp.broadcast_arrays(*arrays))
    shape = lax.broadcast_shapes(*(x.shape for x in arrays))
    return [
        x if x.shape == shape else lax.broadcast_in_dim(x, shape, range(len(shape) - x.ndim, len(shape))) for x in arrays
    ]


def broadcast_beside(axis: int, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The arrays, of one rank, in a common shape but for dimension `axis`, which counts from the end."""
    common = list(lax.broadcast_shapes(*((*x.shape[:axis], 1, *x.shape[x.ndim + axis + 1 :]) for x in arrays)))
    shapes = [(*common[:axis], x.shape[axis], *common[len(common) + axis + 1 :]) for x in arrays]
    if all(x.shape == shape for x, shape in zip(arrays, shapes, strict=True)):
        return list(arrays)
    arrays = [jnp.broadcast_to(x, shape) for x, shape in zip(arrays, shapes, strict=True)]
    return _in_common_sharding(arrays) if any(any(jax.typeof(x).sharding.spec) for x in arrays) else arrays


def _in_common_sharding(arrays: list[jax.Array]) -> list[jax.Array]:
    """Arrays of one shape over explicit axes, split as those of them that are; unchanged if they are split differently."""
    shardings = [jax.typeof(x).sharding for x in arrays]
    entries = [set(filter(None, each)) for each in zip(*(each.spec for each in shardings), strict=True)]
    if any(len(each) > 1 for each in entries):
        return arrays
    axes = [next(iter(each), None) for each in entries]
    mesh = next(each.mesh for each in shardings if not each.mesh.empty)
    common = NamedSharding(mesh, PartitionSpec(*axes))
    return [x if each == common else jax.sharding.reshard(x, common) for x, each in zip(arrays, shardings, strict=True)]


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
