"""Parts of arrays at computed places: gather, scatter and dynamic slices.

Every form is rewritten in JAX to those that a node expresses: places in bounds, and one place for each element of a grid, or
for a whole part of an array.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.writing import walk
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast, computed, reshape, transpose
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.value import Size, Value, known

_IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS


def _same(a: Size, b: Size) -> bool:
    return str(a) == str(b)


def _vector(sizes: Sequence[Size], dtype: Any = np.int32) -> Any:
    """Sizes as an array, which is computed if one of them is open."""
    if all(isinstance(size, int) for size in sizes):
        return np.clip(np.asarray(sizes, np.int64), None, jnp.iinfo(dtype).max).astype(dtype)
    return lax.concatenate([lax.reshape(lax.convert_element_type(jnp.asarray(size), dtype), (1,)) for size in sizes], 0)


def _along_last(vector: Any, shape: Sequence[Size]) -> Any:
    return lax.broadcast_in_dim(vector, tuple(shape), (len(shape) - 1,))


def _clamped(indices: Any, limits: Sequence[Size]) -> Any:
    """Places of the last dimension between 0 and the limits, as int32."""
    largest = _along_last(_vector(limits, indices.dtype), indices.shape)
    indices = lax.min(lax.max(indices, lax.full_like(indices, 0)), largest)
    return lax.convert_element_type(indices, np.int32)


def _inside(indices: Any, limits: Sequence[Size]) -> Any:
    """Whether all places of the last dimension are between 0 and the limits."""
    largest = _along_last(_vector(limits, indices.dtype), indices.shape)
    each = lax.bitwise_and(lax.ge(indices, lax.full_like(indices, 0)), lax.le(indices, largest))
    columns = [lax.squeeze(_column(each, number), [each.ndim - 1]) for number in range(each.shape[-1])]
    return functools.reduce(lax.bitwise_and, columns)


def _column(indices: Any, number: int) -> Any:
    return indices if indices.shape[-1] == 1 else lax.slice_in_dim(indices, number, number + 1, axis=-1)


def _known_inside(indices: Value, limits: Sequence[Size]) -> bool:
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
        parts = [zeros if k is None else _column(indices, k) for k in columns]
        indices = lax.concatenate(parts, indices.ndim - 1)
    result = lax.broadcast_in_dim(indices, shape, (*batch, len(grid)))
    if all(position is None for position in positions):
        return result
    steps = [
        lax.full((*grid, 1), 0, np.int32) if position is None else lax.broadcasted_iota(np.int32, (*grid, 1), position)
        for position in positions
    ]
    return result + lax.concatenate(steps, len(grid))


class _Gather:
    """The parameters of a gather, with the dimensions that each of its outputs has.

    Attributes:
      sizes: of the part, in each dimension of the operand.
      starts: the dimension of the operand for each column of the indices.
      joined: the dimensions of the operand that are mapped together with those of the indices, `with_indices`.
      outputs: for each dimension of the operand, that of the result; None if it is left out.
      batch: the dimensions of the result that the leading ones of the indices are.
    """

    def __init__(self, parameters: Any, operand: Value, rank: int):
        numbers = parameters["dimension_numbers"]
        self.sizes = tuple(parameters["slice_sizes"])
        self.starts = tuple(map(int, numbers.start_index_map))
        self.joined = tuple(map(int, numbers.operand_batching_dims))
        self.with_indices = tuple(map(int, numbers.start_indices_batching_dims))
        left_out = {*map(int, numbers.collapsed_slice_dims), *self.joined}
        offsets = tuple(map(int, numbers.offset_dims))
        remaining = iter(offsets)
        self.outputs = [None if d in left_out else next(remaining) for d in range(operand.ndim)]
        self.batch = tuple(d for d in range(rank) if d not in offsets)
        self.limits = [_less(operand.shape[d], self.sizes[d]) for d in self.starts]


def _less(a: Size, b: Size) -> Size:
    difference = a - b
    return int(difference) if isinstance(difference, int | np.integer) else difference


@primitive("gather")
def _gather(builder: Builder, equation: Any, operands: list[Value]) -> Value:
    (x, indices), parameters = operands, equation.params
    type = equation.outvars[0].aval
    form = _Gather(parameters, x, len(type.shape))
    mode = parameters["mode"]
    if mode != _IN_BOUNDS and not _known_inside(indices, form.limits):
        return _bounded(builder, parameters, form, operands)
    written = _gather_node(builder, form, type, x, indices)
    return written if written is not None else _gather_of_places(builder, form, type, x, indices)


def _bounded(builder: Builder, parameters: Any, form: _Gather, operands: list[Value]) -> Value:
    """A gather of which some places may be out of bounds: at the nearest ones in bounds, or filled."""

    def gather(x: jax.Array, indices: jax.Array) -> jax.Array:
        numbers, sizes = parameters["dimension_numbers"], parameters["slice_sizes"]
        result = lax.gather(x, _clamped(indices, form.limits), numbers, sizes, mode=_IN_BOUNDS)
        if parameters["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
            return result
        mask = lax.broadcast_in_dim(_inside(indices, form.limits), result.shape, form.batch)
        return lax.select(mask, result, lax.full(result.shape, parameters["fill_value"], result.dtype))

    return walk.traced(builder, gather, *operands)


def _gather_node(builder: Builder, form: _Gather, type: Any, x: Value, indices: Value) -> Value | None:
    """Gather, GatherElements or GatherND, if one of them expresses the call."""
    starts, joined = form.starts, form.joined
    others = [d for d in range(x.ndim) if d not in (*starts, *joined)]
    is_whole = all(_same(form.sizes[d], x.shape[d]) for d in others) and all(_same(form.sizes[d], 1) for d in starts)
    if not is_whole or not starts:
        return None
    batch = indices.shape[:-1]
    places = cast(builder, indices, np.int64)
    if not joined and len(starts) == 1:
        (d,) = starts
        shape = (*x.shape[:d], *batch, *x.shape[d + 1 :])
        found = computed(
            builder,
            "Gather",
            [x, reshape(builder, places, batch)],
            jax.ShapeDtypeStruct(shape, x.dtype),
            since=13,
            axis=d,
            label="gathered",
        )
        order = [*(form.outputs[k] for k in range(d)), *form.batch, *(form.outputs[k] for k in range(d + 1, x.ndim))]
        return _ordered(builder, found, order, type)
    if len(starts) == 1 and not others and form.with_indices == joined and len(batch) == x.ndim:
        flat = jax.ShapeDtypeStruct(batch, x.dtype)
        axis, at = starts[0], reshape(builder, places, batch)
        found = computed(builder, "GatherElements", [x, at], flat, since=13, axis=axis, label="gathered")
        return _ordered(builder, found, list(form.batch), type)
    count = len(joined)
    is_leading = joined == form.with_indices == tuple(range(count))
    if is_leading and starts == tuple(range(count, count + len(starts))):
        rest = range(count + len(starts), x.ndim)
        result = jax.ShapeDtypeStruct((*batch, *(x.shape[d] for d in rest)), x.dtype)
        found = computed(builder, "GatherND", [x, places], result, since=13, batch_dims=count or None, label="gathered")
        return _ordered(builder, found, [*form.batch, *(form.outputs[d] for d in rest)], type)
    return None


def _ordered(builder: Builder, x: Value, dimensions: Sequence[int | None], type: Any) -> Value:
    """`x`, whose dimensions are these of the result, as the result, which has dimensions of size 1 besides."""
    present = [d for d in dimensions if d is not None]
    x = reshape(builder, x, [size for size, d in zip(x.shape, dimensions, strict=True) if d is not None])
    order = sorted(range(len(present)), key=present.__getitem__)
    return reshape(builder, transpose(builder, x, order), type.shape)


def _gather_of_places(builder: Builder, form: _Gather, type: Any, x: Value, indices: Value) -> Value:
    """A gather of any form, with the place of each element along the first dimensions, or as a slice."""
    indexed = {d: column for column, d in enumerate(form.starts) if _same(form.sizes[d], 1) or not _is_all(form, x, d)}
    cut = [d for d in range(x.ndim) if d not in (*form.starts, *form.joined) and not _is_all(form, x, d)]
    is_single = not form.joined and all(_same(size, 1) for size in indices.shape[:-1])

    def gather(x: jax.Array, indices: jax.Array) -> jax.Array:
        indices = lax.convert_element_type(indices, np.int32)
        for d in cut:
            x = lax.slice_in_dim(x, 0, form.sizes[d], axis=d)
        if is_single or not (indexed or form.joined):
            flat = lax.reshape(indices, (indices.shape[-1],)) if is_single else indices
            zero = np.int32(0)
            place = [lax.index_in_dim(flat, indexed[d], 0, False) if d in indexed else zero for d in range(x.ndim)]
            part = lax.dynamic_slice(x, place, form.sizes) if indexed else x
            return lax.broadcast_in_dim(lax.reshape(part, _sizes(part, form)), type.shape, _present(form))
        depth = 1 + max((*indexed, *(d for d in range(x.ndim) if form.outputs[d] is None)))
        tail = [form.outputs[d] for d in range(depth, x.ndim)]
        kept = [d for d in range(len(type.shape)) if d not in tail]
        places = _places(form, indices, type.shape, kept, [indexed.get(d) for d in range(depth)], form.outputs)
        numbers = lax.GatherDimensionNumbers(
            offset_dims=tuple(range(len(kept), len(type.shape))),
            collapsed_slice_dims=tuple(range(depth)),
            start_index_map=tuple(range(depth)),
        )
        result = lax.gather(x, places, numbers, (*[1] * depth, *x.shape[depth:]), mode=_IN_BOUNDS)
        return lax.transpose(result, [[*kept, *tail].index(d) for d in range(len(type.shape))])

    return walk.traced(builder, gather, x, indices)


def _is_all(form: _Gather, x: Value, d: int) -> bool:
    return _same(form.sizes[d], x.shape[d])


def _present(form: _Gather) -> tuple[int, ...]:
    return tuple(d for d in form.outputs if d is not None)


def _sizes(part: Any, form: _Gather) -> tuple[Size, ...]:
    return tuple(size for size, d in zip(part.shape, form.outputs, strict=True) if d is not None)


class _Scatter:
    """The parameters of a scatter.

    Attributes:
      starts: the dimension of the operand for each column of the indices.
      joined: the dimensions of the operand that are mapped together with those of the indices, `with_indices`.
      windows: for each dimension of the operand, that of the updates; None if they have none.
      batch: the dimensions of the updates that the leading ones of the indices are.
      sizes: those that an update has, in each dimension of the operand.
      limits: the largest places in bounds.
    """

    def __init__(self, parameters: Any, operand: Any, updates: Any):
        self.numbers = numbers = parameters["dimension_numbers"]
        self.starts = tuple(map(int, numbers.scatter_dims_to_operand_dims))
        self.joined = tuple(map(int, numbers.operand_batching_dims))
        self.with_indices = tuple(map(int, numbers.scatter_indices_batching_dims))
        without = {*map(int, numbers.inserted_window_dims), *self.joined}
        dimensions = tuple(map(int, numbers.update_window_dims))
        remaining = iter(dimensions)
        rank = len(operand.shape)
        self.windows = [None if d in without else next(remaining) for d in range(rank)]
        self.batch = tuple(d for d in range(len(updates.shape)) if d not in dimensions)
        self.sizes = [1 if d is None else updates.shape[d] for d in self.windows]
        self.limits = [_less(operand.shape[d], self.sizes[d]) for d in self.starts]


def _places(
    form: _Gather | _Scatter,
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
    is_grown = [d in form.joined or not _same(form.sizes[d], 1) for d in range(len(columns))]
    grown = [position if is_grown else None for position, is_grown in zip(positions, is_grown, strict=True)]
    return _coordinates(indices, [shape[d] for d in kept], [kept.index(d) for d in form.batch], columns, grown)


_REDUCTIONS = {  # of the primitives: the node's reduction, and the operator set that has it
    "scatter": (None, 13),
    "scatter-add": ("add", 16),
    "scatter-sub": ("add", 16),
    "scatter-mul": ("mul", 16),
    "scatter-min": ("min", 18),
    "scatter-max": ("max", 18),
}
_FUNCTIONS: dict[str, Any] = {
    "scatter": lax.scatter,
    "scatter-add": lax.scatter_add,
    "scatter-mul": lax.scatter_mul,
    "scatter-min": lax.scatter_min,
    "scatter-max": lax.scatter_max,
}


@primitive(*_REDUCTIONS)
def _scatter(builder: Builder, equation: Any, operands: list[Value]) -> Value:
    name, parameters = equation.primitive.name, equation.params
    x, indices, updates = operands
    if name == "scatter" and parameters["update_jaxpr"] is not None:
        raise ModelError("updates by a function of one's own are not written")
    form = _Scatter(parameters, x, updates)

    def scattered(function: Any) -> Value:
        return walk.traced(builder, function, *operands)

    wide = _carrier(x.dtype, name)
    if wide != x.dtype:
        return scattered(lambda x, i, u: _as(_call(name, form, _as(x, wide), i, _as(u, wide), parameters["mode"]), x.dtype))
    if name == "scatter-sub":
        return scattered(lambda x, i, u: _call(name, form, x, i, u, parameters["mode"]))
    if parameters["mode"] != _IN_BOUNDS and not _known_inside(indices, form.limits):
        return scattered(lambda x, i, u: _scatter_bounded(name, form, parameters["mode"], x, i, u))
    depth = len(form.starts)
    batch = len(form.batch)
    is_direct = form.starts == tuple(range(depth)) and not form.joined and form.batch == tuple(range(batch))
    is_whole = all(_same(form.sizes[d], x.shape[d]) and form.windows[d] is not None for d in range(depth, x.ndim))
    if is_direct and is_whole and form.windows[:depth] == [None] * depth:
        reduction, since = _REDUCTIONS[name]
        inputs = [x, cast(builder, indices, np.int64), updates]
        return computed(builder, "ScatterND", inputs, x.type, since=since, reduction=reduction, label="scattered")
    return scattered(lambda x, i, u: _scatter_of_places(name, form, x, i, u))


def _carrier(dtype: Any, name: str) -> np.dtype:
    """The type in which ScatterND moves, or reduces, elements of a type, without loss."""
    dtype = np.dtype(dtype)
    if name == "scatter" and dtype.kind in "biuf":
        return dtype
    if jnp.issubdtype(dtype, jnp.floating):
        return dtype if dtype.kind == "f" and dtype != jnp.bfloat16 else np.dtype(np.float32)
    if dtype.kind in "iu":
        return dtype
    return np.dtype(np.int32)  # of two truth values, or of 4 bits


def _as(x: jax.Array, dtype: Any) -> jax.Array:
    return lax.convert_element_type(x, dtype)


def _call(name: str, form: _Scatter, x: Any, indices: Any, updates: Any, mode: Any, numbers: Any = None) -> jax.Array:
    if name == "scatter-sub":
        name, updates = "scatter-add", -updates
    return _FUNCTIONS[name](x, indices, updates, numbers or form.numbers, mode=mode)


def _neutral(name: str, dtype: Any) -> Any:
    """What changes no element when it is reduced with one."""
    limits: Any = jnp.finfo(dtype) if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype)
    is_float = jnp.issubdtype(dtype, jnp.floating)
    if name in ("scatter-add", "scatter-mul"):
        return (-0.0 if is_float else 0) if name == "scatter-add" else 1
    if name == "scatter-min":
        return np.inf if is_float else limits.max
    return -np.inf if is_float else limits.min


def _scatter_bounded(name: str, form: _Scatter, mode: Any, x: Any, indices: Any, updates: Any) -> jax.Array:
    """A scatter of which some places may be out of bounds: at the nearest ones in bounds, or left out."""
    places = _clamped(indices, form.limits)
    if mode == lax.GatherScatterMode.CLIP:
        return _call(name, form, x, places, updates, _IN_BOUNDS)
    inside = _inside(indices, form.limits)
    mask = lax.broadcast_in_dim(inside, updates.shape, form.batch)
    if name != "scatter":
        updates = lax.select(mask, updates, lax.full(updates.shape, _neutral(name, x.dtype), x.dtype))
        return _call(name, form, x, places, updates, _IN_BOUNDS)
    if all(_same(updates.shape[d], 1) for d in form.batch):  # one update, of which what it would replace is left
        numbers = lax.GatherDimensionNumbers(
            offset_dims=form.numbers.update_window_dims,
            collapsed_slice_dims=form.numbers.inserted_window_dims,
            start_index_map=form.starts,
            operand_batching_dims=form.joined,
            start_indices_batching_dims=form.with_indices,
        )
        old = lax.gather(x, places, numbers, tuple(form.sizes), mode=_IN_BOUNDS)
        return _call(name, form, x, places, lax.select(mask, updates, old), _IN_BOUNDS)
    return _scatter_beside(name, form, x, places, inside, updates)


def _scatter_beside(name: str, form: _Scatter, x: Any, places: Any, inside: Any, updates: Any) -> jax.Array:
    """What is out of bounds goes beside the array, where it can replace nothing."""
    d, size = form.starts[0], x.shape[form.starts[0]]
    beside = list(x.shape)
    beside[d] = form.sizes[d]
    wider = lax.concatenate([x, lax.full(beside, 0, x.dtype)], d)
    outside = _vector([size if column == 0 else 0 for column in range(len(form.starts))])
    mask = lax.broadcast_in_dim(inside, places.shape, range(inside.ndim))
    places = lax.select(mask, places, _along_last(outside, places.shape))
    return lax.slice_in_dim(_call(name, form, wider, places, updates, _IN_BOUNDS), 0, size, axis=d)


def _scatter_of_places(name: str, form: _Scatter, x: Any, indices: Any, updates: Any) -> jax.Array:
    """A scatter of any form, with the place of each element along the first dimensions."""
    indices = lax.convert_element_type(indices, np.int32)
    partial = [d for d in range(x.ndim) if not _same(form.sizes[d], x.shape[d])]
    columns = {d: column for column, d in enumerate(form.starts) if d in partial or form.windows[d] is None}
    depth = 1 + max((*partial, *columns, *(d for d in range(x.ndim) if form.windows[d] is None)), default=0)
    tail = [d for d in form.windows[depth:] if d is not None]
    kept = [d for d in range(updates.ndim) if d not in tail]
    places = _places(form, indices, updates.shape, kept, [columns.get(d) for d in range(depth)], form.windows)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(len(kept), updates.ndim)),
        inserted_window_dims=tuple(range(depth)),
        scatter_dims_to_operand_dims=tuple(range(depth)),
    )
    return _call(name, form, x, places, lax.transpose(updates, [*kept, *tail]), _IN_BOUNDS, numbers)


@primitive("dynamic_slice")
def _dynamic_slice(builder: Builder, equation: Any, operands: list[Value]) -> Value:
    """Slice with computed starts; Gather for one place along one dimension."""
    (x, *starts), sizes = operands, equation.params["slice_sizes"]
    moved = [d for d in range(x.ndim) if not _same(sizes[d], x.shape[d])]
    if not moved:
        return x
    begin = _starts(builder, x.shape, sizes, starts, moved)
    type = equation.outvars[0].aval
    if len(moved) == 1 and _same(sizes[moved[0]], 1):
        return computed(builder, "Gather", [x, begin], type, since=13, axis=moved[0], label="part")
    lengths = builder.shape([sizes[d] for d in moved])
    if begin.known is not None and lengths.known is not None:
        end = known(begin.known + lengths.known)
    else:
        end = builder.node("Add", [begin, lengths], begin.type, since=14, label="end")
    axes = known(np.array(moved, np.int64))
    return computed(builder, "Slice", [x, begin, end, axes], type, since=13, label="part")


def _starts(
    builder: Builder, shape: Sequence[Size], sizes: Sequence[Size], starts: Sequence[Value], moved: Sequence[int]
) -> Value:
    """Where a part begins along these dimensions, so that it is in bounds: int64."""

    def clamped(*starts: jax.Array) -> jax.Array:
        columns = [lax.convert_element_type(lax.reshape(start, (1,)), np.int32) for start in starts]
        return _clamped(lax.concatenate(columns, 0), [_less(shape[d], sizes[d]) for d in moved])

    return cast(builder, walk.traced(builder, clamped, *(starts[d] for d in moved)), np.int64)


@primitive("dynamic_update_slice")
def _dynamic_update_slice(builder: Builder, equation: Any, operands: list[Value]) -> Value:
    """ScatterND: of a cache, only what is new is written, and no part is cut out and joined again."""
    x, update, *_ = operands
    moved = [d for d in range(x.ndim) if not _same(update.shape[d], x.shape[d])]
    if not moved:
        return update

    def updated(x: jax.Array, update: jax.Array, *starts: jax.Array) -> jax.Array:
        columns = [lax.convert_element_type(lax.reshape(starts[d], (1,)), np.int32) for d in moved]
        places = _clamped(lax.concatenate(columns, 0), [_less(x.shape[d], update.shape[d]) for d in moved])
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(x.ndim)),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=tuple(moved),
        )
        return lax.scatter(x, places, update, numbers, mode=_IN_BOUNDS)

    return walk.traced(builder, updated, *operands)
