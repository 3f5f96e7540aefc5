"""Changes at computed indices. Forms that ScatterND does not express are rewritten in JAX to those that it does."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.writing import walk
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.indices import (
    IN_BOUNDS,
    Indexing,
    along_last,
    are_inside,
    clamped,
    indices_on_grid,
    known_inside,
    size_vector,
)
from jquant.onnx.writing.steps import cast, computed
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Tensor, is_one, sizes_equal

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
def _scatter(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    name, parameters = equation.primitive.name, equation.params
    x, indices, updates = operands
    if name == "scatter" and parameters["update_jaxpr"] is not None:
        raise ModelError("updates by a function of one's own are not written")
    form = Indexing.of_scatter(parameters, x, updates)

    def scattered(function: Any) -> Tensor:
        return walk.traced(builder, function, *operands)

    wide = _carrier(x.dtype, name)
    if wide != x.dtype:
        return scattered(lambda x, i, u: _as(_call(name, form, _as(x, wide), i, _as(u, wide), parameters["mode"]), x.dtype))
    if name == "scatter-sub":
        return scattered(lambda x, i, u: _call(name, form, x, i, u, parameters["mode"]))
    if parameters["mode"] != IN_BOUNDS and not known_inside(indices, form.limits):
        return scattered(lambda x, i, u: _scatter_bounded(name, form, parameters["mode"], x, i, u))
    depth = len(form.starts)
    batch = len(form.batch)
    is_direct = form.starts == tuple(range(depth)) and not form.batching and form.batch == tuple(range(batch))
    is_whole = all(sizes_equal(form.sizes[d], x.shape[d]) and form.windows[d] is not None for d in range(depth, x.ndim))
    if is_direct and is_whole and form.windows[:depth] == [None] * depth:
        reduction, since = _REDUCTIONS[name]
        inputs = [x, cast(builder, indices, np.int64), updates]
        return computed(builder, "ScatterND", inputs, x.type, since=since, reduction=reduction, label="scattered")
    return scattered(lambda x, i, u: _scatter_by_element(name, form, x, i, u))


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


def _call(name: str, form: Indexing, x: Any, indices: Any, updates: Any, mode: Any, numbers: Any = None) -> jax.Array:
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


def _scatter_bounded(name: str, form: Indexing, mode: Any, x: Any, indices: Any, updates: Any) -> jax.Array:
    """A scatter of which some indices may be out of bounds: at the nearest ones in bounds, or left out."""
    bounded = clamped(indices, form.limits)
    if mode == lax.GatherScatterMode.CLIP:
        return _call(name, form, x, bounded, updates, IN_BOUNDS)
    inside = are_inside(indices, form.limits)
    mask = lax.broadcast_in_dim(inside, updates.shape, form.batch)
    if name != "scatter":
        updates = lax.select(mask, updates, lax.full(updates.shape, _neutral(name, x.dtype), x.dtype))
        return _call(name, form, x, bounded, updates, IN_BOUNDS)
    if all(is_one(updates.shape[d]) for d in form.batch):  # one update, of which what it would replace is left
        numbers = lax.GatherDimensionNumbers(
            offset_dims=form.numbers.update_window_dims,
            collapsed_slice_dims=form.numbers.inserted_window_dims,
            start_index_map=form.starts,
            operand_batching_dims=form.batching,
            start_indices_batching_dims=form.with_indices,
        )
        old = lax.gather(x, bounded, numbers, form.sizes, mode=IN_BOUNDS)
        return _call(name, form, x, bounded, lax.select(mask, updates, old), IN_BOUNDS)
    return _scatter_beside(name, form, x, bounded, inside, updates)


def _scatter_beside(name: str, form: Indexing, x: Any, indices: Any, inside: Any, updates: Any) -> jax.Array:
    """What is out of bounds goes beside the array, where it can replace nothing."""
    d, size = form.starts[0], x.shape[form.starts[0]]
    beside = list(x.shape)
    beside[d] = form.sizes[d]
    wider = lax.concatenate([x, lax.full(beside, 0, x.dtype)], d)
    outside = size_vector([size if column == 0 else 0 for column in range(len(form.starts))])
    mask = lax.broadcast_in_dim(inside, indices.shape, range(inside.ndim))
    indices = lax.select(mask, indices, along_last(outside, indices.shape))
    return lax.slice_in_dim(_call(name, form, wider, indices, updates, IN_BOUNDS), 0, size, axis=d)


def _scatter_by_element(name: str, form: Indexing, x: Any, indices: Any, updates: Any) -> jax.Array:
    """A scatter of any form, with the index of each element along the first dimensions."""
    indices = lax.convert_element_type(indices, np.int32)
    partial = [d for d in range(x.ndim) if not sizes_equal(form.sizes[d], x.shape[d])]
    columns = {d: column for column, d in enumerate(form.starts) if d in partial or form.windows[d] is None}
    depth = 1 + max((*partial, *columns, *(d for d in range(x.ndim) if form.windows[d] is None)), default=0)
    tail = [d for d in form.windows[depth:] if d is not None]
    kept = [d for d in range(updates.ndim) if d not in tail]
    indices = indices_on_grid(form, indices, updates.shape, kept, [columns.get(d) for d in range(depth)])
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(len(kept), updates.ndim)),
        inserted_window_dims=tuple(range(depth)),
        scatter_dims_to_operand_dims=tuple(range(depth)),
    )
    return _call(name, form, x, indices, lax.transpose(updates, [*kept, *tail]), IN_BOUNDS, numbers)
