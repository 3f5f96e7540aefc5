"""Indices into arrays, in vectors along the last dimension, as gather and scatter have them.

What JAX rewrites with them has indices in bounds, and one index for each element of a grid, or for a whole part of an array:
forms that a node expresses.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.onnx.writing.tensor import Size, Tensor, is_one, size_difference

IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS


def size_vector(sizes: Sequence[Size], dtype: Any = np.int32) -> Any:
    """Sizes as an array, which is computed if one of them is dynamic."""
    if all(isinstance(size, int) for size in sizes):
        return np.clip(np.asarray(sizes, np.int64), None, jnp.iinfo(dtype).max).astype(dtype)
    return lax.concatenate([lax.reshape(lax.convert_element_type(jnp.asarray(size), dtype), (1,)) for size in sizes], 0)


def along_last(vector: Any, shape: Sequence[Size]) -> Any:
    return lax.broadcast_in_dim(vector, tuple(shape), (len(shape) - 1,))


def clamped(indices: Any, limits: Sequence[Size]) -> Any:
    """Indices of the last dimension between 0 and the limits, as int32."""
    largest = along_last(size_vector(limits, indices.dtype), indices.shape)
    indices = lax.min(lax.max(indices, lax.full_like(indices, 0)), largest)
    return lax.convert_element_type(indices, np.int32)


def are_inside(indices: Any, limits: Sequence[Size]) -> Any:
    """Whether all indices of the last dimension are between 0 and the limits."""
    largest = along_last(size_vector(limits, indices.dtype), indices.shape)
    each = lax.bitwise_and(lax.ge(indices, lax.full_like(indices, 0)), lax.le(indices, largest))
    columns = [lax.squeeze(column_of(each, number), [each.ndim - 1]) for number in range(each.shape[-1])]
    return functools.reduce(lax.bitwise_and, columns)


def column_of(indices: Any, number: int) -> Any:
    return indices if indices.shape[-1] == 1 else lax.slice_in_dim(indices, number, number + 1, axis=-1)


def known_inside(indices: Tensor, limits: Sequence[Size]) -> bool:
    """Whether indices are known, and within the limits."""
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
    """The index of each element of a grid, along each of the first dimensions of an array.

    Args:
      indices: those that are computed, for some of these dimensions.
      grid: the shape of the grid.
      batch: the dimensions of the grid that the leading ones of `indices` are.
      columns: for each dimension of the array, its column in `indices`, or None.
      positions: for each dimension of the array, the dimension of the grid along which its index grows, or None.
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


class Indexing(NamedTuple):
    """The dimensions of a gather or of a scatter.

    Attributes:
      numbers: JAX's, from which the rest follows.
      sizes: of the part of the array that an index stands for, in each dimension.
      starts: the dimension of the array for each column of the indices.
      batching: the dimensions of the array that are mapped together with those of the indices, `with_indices`.
      windows: for each dimension of the array, that of the result or of the updates; None if they have none.
      batch: the dimensions of the result, or of the updates, that the leading ones of the indices are.
      limits: the largest indices in bounds.
    """

    numbers: Any
    sizes: tuple[Size, ...]
    starts: tuple[int, ...]
    batching: tuple[int, ...]
    with_indices: tuple[int, ...]
    windows: list[int | None]
    batch: tuple[int, ...]
    limits: list[Size]

    @classmethod
    def of_gather(cls, parameters: Any, operand: Any, result: Any) -> "Indexing":
        n = parameters["dimension_numbers"]
        sizes, starts, offsets = tuple(parameters["slice_sizes"]), _ints(n.start_index_map), _ints(n.offset_dims)
        return cls(
            numbers=n,
            sizes=sizes,
            starts=starts,
            batching=_ints(n.operand_batching_dims),
            with_indices=_ints(n.start_indices_batching_dims),
            windows=_windows(operand, offsets, (*n.collapsed_slice_dims, *n.operand_batching_dims)),
            batch=_others(result, offsets),
            limits=_limits(operand, sizes, starts),
        )

    @classmethod
    def of_scatter(cls, parameters: Any, operand: Any, updates: Any) -> "Indexing":
        n = parameters["dimension_numbers"]
        starts, dimensions = _ints(n.scatter_dims_to_operand_dims), _ints(n.update_window_dims)
        windows = _windows(operand, dimensions, (*n.inserted_window_dims, *n.operand_batching_dims))
        sizes = tuple(1 if d is None else updates.shape[d] for d in windows)
        return cls(
            numbers=n,
            sizes=sizes,
            starts=starts,
            batching=_ints(n.operand_batching_dims),
            with_indices=_ints(n.scatter_indices_batching_dims),
            windows=windows,
            batch=_others(updates, dimensions),
            limits=_limits(operand, sizes, starts),
        )


def _ints(numbers: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(int, numbers))


def _windows(operand: Any, dimensions: Sequence[int], without: Sequence[int]) -> list[int | None]:
    remaining = iter(dimensions)
    return [None if d in without else next(remaining) for d in range(len(operand.shape))]


def _others(x: Any, dimensions: Sequence[int]) -> tuple[int, ...]:
    return tuple(d for d in range(len(x.shape)) if d not in dimensions)


def _limits(operand: Any, sizes: Sequence[Size], starts: Sequence[int]) -> list[Size]:
    return [size_difference(operand.shape[d], sizes[d]) for d in starts]


def indices_on_grid(
    form: Indexing, indices: Any, shape: Sequence[Size], kept: Sequence[int], columns: Sequence[int | None]
) -> Any:
    """The index of each element of the result of a gather, or of the updates of a scatter, as `_coordinates` has it.

    Args:
      shape: that of the result or of the updates.
      kept: its dimensions that make the grid; each element of the grid is a part of the array in the others.
      columns: for each of the first dimensions of the array, its column in `indices`, or None.
    """
    positions = [None if p is None else kept.index(p) for p in form.windows[: len(columns)]]
    for d, with_indices in zip(form.batching, form.with_indices, strict=True):
        positions[d] = kept.index(form.batch[with_indices])
    is_grown = [d in form.batching or not is_one(form.sizes[d]) for d in range(len(columns))]
    grown = [position if is_grown else None for position, is_grown in zip(positions, is_grown, strict=True)]
    return _coordinates(indices, [shape[d] for d in kept], [kept.index(d) for d in form.batch], columns, grown)
