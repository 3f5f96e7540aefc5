"""Reading at computed places. Forms that no node expresses are rewritten in JAX to those that one does."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jquant.onnx.writing import walk
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.places import (
    IN_BOUNDS,
    are_inside,
    clamped,
    known_inside,
    places_on_grid,
    same_size,
    size_difference,
)
from jquant.onnx.writing.steps import cast, computed, reshape, transpose
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Size, Tensor


class _Gather:
    """The parameters of a gather, with the dimensions that each of its outputs has.

    Attributes:
      sizes: of the part, in each dimension of the operand.
      starts: the dimension of the operand for each column of the indices.
      joined: the dimensions of the operand that are mapped together with those of the indices, `with_indices`.
      outputs: for each dimension of the operand, that of the result; None if it is left out.
      batch: the dimensions of the result that the leading ones of the indices are.
    """

    def __init__(self, parameters: Any, operand: Tensor, rank: int):
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
        self.limits = [size_difference(operand.shape[d], self.sizes[d]) for d in self.starts]


@primitive("gather")
def _gather(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    (x, indices), parameters = operands, equation.params
    type = equation.outvars[0].aval
    form = _Gather(parameters, x, len(type.shape))
    mode = parameters["mode"]
    if mode != IN_BOUNDS and not known_inside(indices, form.limits):
        return _bounded(builder, parameters, form, operands)
    written = _gather_node(builder, form, type, x, indices)
    return written if written is not None else _gather_of_places(builder, form, type, x, indices)


def _bounded(builder: Builder, parameters: Any, form: _Gather, operands: list[Tensor]) -> Tensor:
    """A gather of which some places may be out of bounds: at the nearest ones in bounds, or filled."""

    def gather(x: jax.Array, indices: jax.Array) -> jax.Array:
        numbers, sizes = parameters["dimension_numbers"], parameters["slice_sizes"]
        result = lax.gather(x, clamped(indices, form.limits), numbers, sizes, mode=IN_BOUNDS)
        if parameters["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
            return result
        mask = lax.broadcast_in_dim(are_inside(indices, form.limits), result.shape, form.batch)
        return lax.select(mask, result, lax.full(result.shape, parameters["fill_value"], result.dtype))

    return walk.traced(builder, gather, *operands)


def _gather_node(builder: Builder, form: _Gather, type: Any, x: Tensor, indices: Tensor) -> Tensor | None:
    """Gather, GatherElements or GatherND, if one of them expresses the call."""
    starts, joined = form.starts, form.joined
    others = [d for d in range(x.ndim) if d not in (*starts, *joined)]
    is_whole = all(same_size(form.sizes[d], x.shape[d]) for d in others) and all(same_size(form.sizes[d], 1) for d in starts)
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


def _ordered(builder: Builder, x: Tensor, dimensions: Sequence[int | None], type: Any) -> Tensor:
    """`x`, whose dimensions are these of the result, as the result, which has dimensions of size 1 besides."""
    present = [d for d in dimensions if d is not None]
    x = reshape(builder, x, [size for size, d in zip(x.shape, dimensions, strict=True) if d is not None])
    order = sorted(range(len(present)), key=present.__getitem__)
    return reshape(builder, transpose(builder, x, order), type.shape)


def _gather_of_places(builder: Builder, form: _Gather, type: Any, x: Tensor, indices: Tensor) -> Tensor:
    """A gather of any form, with the place of each element along the first dimensions, or as a slice."""
    indexed = {d: column for column, d in enumerate(form.starts) if same_size(form.sizes[d], 1) or not _is_all(form, x, d)}
    cut = [d for d in range(x.ndim) if d not in (*form.starts, *form.joined) and not _is_all(form, x, d)]
    is_single = not form.joined and all(same_size(size, 1) for size in indices.shape[:-1])

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
        places = places_on_grid(form, indices, type.shape, kept, [indexed.get(d) for d in range(depth)], form.outputs)
        numbers = lax.GatherDimensionNumbers(
            offset_dims=tuple(range(len(kept), len(type.shape))),
            collapsed_slice_dims=tuple(range(depth)),
            start_index_map=tuple(range(depth)),
        )
        result = lax.gather(x, places, numbers, (*[1] * depth, *x.shape[depth:]), mode=IN_BOUNDS)
        return lax.transpose(result, [[*kept, *tail].index(d) for d in range(len(type.shape))])

    return walk.traced(builder, gather, x, indices)


def _is_all(form: _Gather, x: Tensor, d: int) -> bool:
    return same_size(form.sizes[d], x.shape[d])


def _present(form: _Gather) -> tuple[int, ...]:
    return tuple(d for d in form.outputs if d is not None)


def _sizes(part: Any, form: _Gather) -> tuple[Size, ...]:
    return tuple(size for size, d in zip(part.shape, form.outputs, strict=True) if d is not None)
