"""Places in arrays, in vectors along the last dimension, as gather and scatter have them.

What JAX rewrites with them has places in bounds, and one place for each element of a grid, or for a whole part of an array:
forms that a node expresses.
"""

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.onnx.writing.tensor import Size, Tensor

IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS


def same_size(a: Size, b: Size) -> bool:
    return str(a) == str(b)


def size_vector(sizes: Sequence[Size], dtype: Any = np.int32) -> Any:
    """Sizes as an array, which is computed if one of them is open."""
    if all(isinstance(size, int) for size in sizes):
        return np.clip(np.asarray(sizes, np.int64), None, jnp.iinfo(dtype).max).astype(dtype)
    return lax.concatenate([lax.reshape(lax.convert_element_type(jnp.asarray(size), dtype), (1,)) for size in sizes], 0)


def along_last(vector: Any, shape: Sequence[Size]) -> Any:
    return lax.broadcast_in_dim(vector, tuple(shape), (len(shape) - 1,))


def clamped(indices: Any, limits: Sequence[Size]) -> Any:
    """Places of the last dimension between 0 and the limits, as int32."""
    largest = along_last(size_vector(limits, indices.dtype), indices.shape)
    indices = lax.min(lax.max(indices, lax.full_like(indices, 0)), largest)
    return lax.convert_element_type(indices, np.int32)


def are_inside(indices: Any, limits: Sequence[Size]) -> Any:
    """Whether all places of the last dimension are between 0 and the limits."""
    largest = along_last(size_vector(limits, indices.dtype), indices.shape)
    each = lax.bitwise_and(lax.ge(indices, lax.full_like(indices, 0)), lax.le(indices, largest))
    columns = [lax.squeeze(column_of(each, number), [each.ndim - 1]) for number in range(each.shape[-1])]
    return functools.reduce(lax.bitwise_and, columns)


def column_of(indices: Any, number: int) -> Any:
    return indices if indices.shape[-1] == 1 else lax.slice_in_dim(indices, number, number + 1, axis=-1)


def known_inside(indices: Tensor, limits: Sequence[Size]) -> bool:
    """Whether places are known, and within the limits."""
    if indices.known is None or not all(isinstance(limit, int) for limit in limits):
        return False
    return bool(np.all((indices.known >= 0) & (indices.known <= np.asarray(limits))))


def _coordinates(
    indices: Any,
    grid: Sequence[Size],
    batch: Sequence[int],
    columns: Sequence[int | None],
    positions: Sequence[int | None],
) -> Any:
    """The place of each element of a grid, along each of the first dimensions of an array.

    Args:
      indices: places, for some of these dimensions.
      grid: the shape of the grid.
      batch: the dimensions of the grid that the leading ones of `indices` are.
      columns: for each dimension of the array, its column in `indices`, or None.
      positions: for each dimension of the array, the dimension of the grid along which its place grows, or None.
    """
    shape = (*grid, len(columns))
    if list(columns) != list(range(indices.shape[-1])):
        zeros = lax.full((*indices.shape[:-1], 1), 0, np.int32)
        parts = [zeros if k is None else column_of(indices, k) for k in columns]
        indices = lax.concatenate(parts, indices.ndim - 1)
    result = lax.broadcast_in_dim(indices, shape, (*batch, len(grid)))
    if all(position is None for position in positions):
        return result
    steps = [
        lax.full((*grid, 1), 0, np.int32) if position is None else lax.broadcasted_iota(np.int32, (*grid, 1), position)
        for position in positions
    ]
    return result + lax.concatenate(steps, len(grid))


def size_difference(a: Size, b: Size) -> Size:
    difference = a - b
    return int(difference) if isinstance(difference, int | np.integer) else difference


class Form(Protocol):
    """What gathers and scatters have in common.

    Attributes:
      sizes: of the part of an array that a place stands for, in each dimension.
      joined: the dimensions of the array that are mapped together with those of the indices, `with_indices`.
      batch: the dimensions of the result, or of the updates, that the leading ones of the indices are.
    """

    sizes: tuple[Size, ...]
    joined: tuple[int, ...]
    with_indices: tuple[int, ...]
    batch: tuple[int, ...]


def places_on_grid(
    form: Form,
    indices: Any,
    shape: Sequence[Size],
    kept: Sequence[int],
    columns: Sequence[int | None],
    dimensions: Sequence[int | None],
) -> Any:
    """The place of each element of the result of a gather, or of the updates of a scatter, as `_coordinates` has it.

    Args:
      shape: that of the result or of the updates.
      kept: its dimensions that make the grid; each element of the grid is a part of the array in the others.
      columns: for each of the first dimensions of the array, its column in `indices`, or None.
      dimensions: for each dimension of the array, that of the result or of the updates, or None.
    """
    positions = [None if p is None else kept.index(p) for p in dimensions[: len(columns)]]
    for d, with_indices in zip(form.joined, form.with_indices, strict=True):
        positions[d] = kept.index(form.batch[with_indices])
    is_grown = [d in form.joined or not same_size(form.sizes[d], 1) for d in range(len(columns))]
    grown = [position if is_grown else None for position, is_grown in zip(positions, is_grown, strict=True)]
    return _coordinates(indices, [shape[d] for d in kept], [kept.index(d) for d in form.batch], columns, grown)
