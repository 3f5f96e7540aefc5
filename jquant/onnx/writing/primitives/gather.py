"""Reading at computed indices. Forms that no node expresses are rewritten in JAX to those that one does."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jquant.onnx.writing import walk
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.indices import IN_BOUNDS, Indexing, are_inside, clamped, indices_on_grid, known_inside
from jquant.onnx.writing.steps import cast, computed, reshape, transpose
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Size, Tensor, is_one, sizes_equal


@primitive("gather")
def _gather(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    (x, indices), parameters = operands, equation.params
    type = equation.outvars[0].aval
    form = Indexing.of_gather(parameters, x, type)
    mode = parameters["mode"]
    if mode != IN_BOUNDS and not known_inside(indices, form.limits):
        return _bounded(builder, parameters, form, operands)
    written = _gather_node(builder, form, type, x, indices)
    return written if written is not None else _gather_by_element(builder, form, type, x, indices)


def _bounded(builder: Builder, parameters: Any, form: Indexing, operands: list[Tensor]) -> Tensor:
    """A gather of which some indices may be out of bounds: at the nearest ones in bounds, or filled."""

    def gather(x: jax.Array, indices: jax.Array) -> jax.Array:
        numbers, sizes = parameters["dimension_numbers"], parameters["slice_sizes"]
        result = lax.gather(x, clamped(indices, form.limits), numbers, sizes, mode=IN_BOUNDS)
        if parameters["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
            return result
        mask = lax.broadcast_in_dim(are_inside(indices, form.limits), result.shape, form.batch)
        return lax.select(mask, result, lax.full(result.shape, parameters["fill_value"], result.dtype))

    return walk.traced(builder, gather, *operands)


def _gather_node(builder: Builder, form: Indexing, type: Any, x: Tensor, indices: Tensor) -> Tensor | None:
    """Gather, GatherElements or GatherND, if one of them expresses the call."""
    starts, batching = form.starts, form.batching
    others = [d for d in range(x.ndim) if d not in (*starts, *batching)]
    is_whole = all(sizes_equal(form.sizes[d], x.shape[d]) for d in others) and all(is_one(form.sizes[d]) for d in starts)
    if not is_whole or not starts:
        return None
    batch = indices.shape[:-1]
    indices = cast(builder, indices, np.int64)
    if not batching and len(starts) == 1:
        (d,) = starts
        shape = (*x.shape[:d], *batch, *x.shape[d + 1 :])
        found = computed(
            builder,
            "Gather",
            [x, reshape(builder, indices, batch)],
            jax.ShapeDtypeStruct(shape, x.dtype),
            since=13,
            axis=d,
            label="gathered",
        )
        order = [*(form.windows[k] for k in range(d)), *form.batch, *(form.windows[k] for k in range(d + 1, x.ndim))]
        return _ordered(builder, found, order, type)
    if len(starts) == 1 and not others and form.with_indices == batching and len(batch) == x.ndim:
        flat = jax.ShapeDtypeStruct(batch, x.dtype)
        axis, at = starts[0], reshape(builder, indices, batch)
        found = computed(builder, "GatherElements", [x, at], flat, since=13, axis=axis, label="gathered")
        return _ordered(builder, found, list(form.batch), type)
    count = len(batching)
    is_leading = batching == form.with_indices == tuple(range(count))
    if is_leading and starts == tuple(range(count, count + len(starts))):
        rest = range(count + len(starts), x.ndim)
        result = jax.ShapeDtypeStruct((*batch, *(x.shape[d] for d in rest)), x.dtype)
        found = computed(builder, "GatherND", [x, indices], result, since=13, batch_dims=count or None, label="gathered")
        return _ordered(builder, found, [*form.batch, *(form.windows[d] for d in rest)], type)
    return None


def _ordered(builder: Builder, x: Tensor, dimensions: Sequence[int | None], type: Any) -> Tensor:
    """`x`, whose dimensions are these of the result, as the result, which has dimensions of size 1 besides."""
    present = [d for d in dimensions if d is not None]
    x = reshape(builder, x, [size for size, d in zip(x.shape, dimensions, strict=True) if d is not None])
    order = sorted(range(len(present)), key=present.__getitem__)
    return reshape(builder, transpose(builder, x, order), type.shape)


def _gather_by_element(builder: Builder, form: Indexing, type: Any, x: Tensor, indices: Tensor) -> Tensor:
    """A gather of any form, with the index of each element along the first dimensions, or as a slice."""
    indexed = {d: column for column, d in enumerate(form.starts) if is_one(form.sizes[d]) or not _is_all(form, x, d)}
    cut = [d for d in range(x.ndim) if d not in (*form.starts, *form.batching) and not _is_all(form, x, d)]
    is_single = not form.batching and all(is_one(size) for size in indices.shape[:-1])

    def gather(x: jax.Array, indices: jax.Array) -> jax.Array:
        indices = lax.convert_element_type(indices, np.int32)
        for d in cut:
            x = lax.slice_in_dim(x, 0, form.sizes[d], axis=d)
        if is_single or not (indexed or form.batching):
            flat = lax.reshape(indices, (indices.shape[-1],)) if is_single else indices
            zero = np.int32(0)
            start = [lax.index_in_dim(flat, indexed[d], 0, False) if d in indexed else zero for d in range(x.ndim)]
            part = lax.dynamic_slice(x, start, form.sizes) if indexed else x
            return lax.broadcast_in_dim(lax.reshape(part, _sizes(part, form)), type.shape, _present(form))
        depth = 1 + max((*indexed, *(d for d in range(x.ndim) if form.windows[d] is None)))
        tail = [form.windows[d] for d in range(depth, x.ndim)]
        kept = [d for d in range(len(type.shape)) if d not in tail]
        indices = indices_on_grid(form, indices, type.shape, kept, [indexed.get(d) for d in range(depth)])
        numbers = lax.GatherDimensionNumbers(
            offset_dims=tuple(range(len(kept), len(type.shape))),
            collapsed_slice_dims=tuple(range(depth)),
            start_index_map=tuple(range(depth)),
        )
        result = lax.gather(x, indices, numbers, (*[1] * depth, *x.shape[depth:]), mode=IN_BOUNDS)
        return lax.transpose(result, [[*kept, *tail].index(d) for d in range(len(type.shape))])

    return walk.traced(builder, gather, x, indices)


def _is_all(form: Indexing, x: Tensor, d: int) -> bool:
    return sizes_equal(form.sizes[d], x.shape[d])


def _present(form: Indexing) -> tuple[int, ...]:
    return tuple(d for d in form.windows if d is not None)


def _sizes(part: Any, form: Indexing) -> tuple[Size, ...]:
    return tuple(size for size, d in zip(part.shape, form.windows, strict=True) if d is not None)
