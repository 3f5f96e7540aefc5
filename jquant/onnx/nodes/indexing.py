"""Slicing, gathering and scattering. Negative indices count from the end.

ONNX forbids indices out of range. Where indices are not known while tracing, gathering clips them to the range, and
scattering ignores those out of range.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.fusing.moving_parts import PART
from jquant.onnx.graphs.graph import JQUANT
from jquant.onnx.graphs.values import sizes
from jquant.onnx.running.registry import converter


@converter("Gather", since=1)
def gather(data, indices, *, axis, xp):
    if xp is np:
        return np.take(data, indices.astype(np.int64), axis)
    return jnp.take(data, _nonnegative(indices, data.shape[axis]), axis, mode="clip")


def _nonnegative(indices, size):
    """Indices that count from the start."""
    return jnp.where(indices < 0, indices + size, indices)


@converter("GatherElements", since=11)
def gather_elements(data, indices, *, axis):
    """Along the other axes, `indices` may be shorter than `data`."""
    axis %= data.ndim
    data = data[tuple(slice(None if i == axis else size) for i, size in enumerate(indices.shape))]
    return jnp.take_along_axis(data, _nonnegative(indices, data.shape[axis]), axis, mode="clip")


@converter("GatherND", since=11)
def gather_nd(data, indices, *, batch_dims=0):
    batches = [jax.lax.broadcasted_iota(indices.dtype, indices.shape[:-1], i) for i in range(batch_dims)]
    return data.at[(*batches, *_index_arrays(indices))].get(mode="clip")


def _index_arrays(indices):
    """For each element of the last axis, an array of indices."""
    return tuple(jnp.moveaxis(indices, -1, 0))


@converter("Slice", since=1, until=9)
def slice_to_9(data, *, starts, ends, axes=None, xp):
    return _slice(data, starts, ends, axes, None)


@converter("Slice", since=10, static=("starts", "ends", "axes", "steps"))
def slice_(data, starts, ends, axes=None, steps=None, *, xp):
    starts, ends, axes, steps = (None if each is None else sizes(each) for each in (starts, ends, axes, steps))
    return _slice(data, starts, ends, axes, steps)


def _slice(data, starts, ends, axes, steps):
    """NumPy's slices, which clamp bounds out of range as ONNX does, except for the end of a reversed slice."""
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0 and not jax.export.is_symbolic_dim(data.shape[axis]) and end < -data.shape[axis]:
            end = None
        index[axis] = slice(_bound(start), _bound(end), step)
    return data[tuple(index)]


def _bound(value):
    """Exporters write the largest integer to mean "to the end"."""
    if value is None or jax.export.is_symbolic_dim(value):
        return value
    return None if value >= 2**31 - 1 else max(value, -(2**31))


@converter(PART, domain=JQUANT, prefers_static=("starts",))
def part(data, starts, *, lengths, axes, last, xp):
    """A slice of known lengths, whose starts are between 0 and `last`."""
    if isinstance(starts, np.ndarray):
        return _slice(data, starts.tolist(), (starts + lengths).tolist(), axes, None)
    begin, shape = [jnp.zeros((), starts.dtype)] * data.ndim, list(data.shape)
    for number, (length, axis) in enumerate(zip(lengths, axes, strict=True)):
        if not last[number] + length <= data.shape[axis]:
            raise ModelError(f"starts may be {last[number]}, from where no {length} elements are left of {data.shape[axis]}")
        begin[axis], shape[axis] = starts[number], length
    return jax.lax.dynamic_slice(data, begin, shape)


@converter("ScatterND", since=11)
def scatter_nd(data, indices, updates, *, reduction="none"):
    return _scatter(data, _index_arrays(indices), updates, reduction)


@converter("Scatter", since=9, until=10)
def scatter(data, indices, updates, *, axis):
    return scatter_elements(data, indices, updates, axis=axis)


@converter("ScatterElements", since=11)
def scatter_elements(data, indices, updates, *, axis, reduction="none"):
    """Along the other axes, `indices` may be shorter than `data`."""
    index_arrays = [jax.lax.broadcasted_iota(indices.dtype, indices.shape, i) for i in range(data.ndim)]
    index_arrays[axis] = indices
    return _scatter(data, tuple(index_arrays), updates, reduction)


def _scatter(data, index_arrays, updates, reduction):
    at = data.at[index_arrays]
    return {"none": at.set, "add": at.add, "mul": at.multiply, "max": at.max, "min": at.min}[reduction](updates)


@converter("TensorScatter", since=24)
def tensor_scatter(past_cache, update, write_indices=None, *, axis, mode):
    """Writes each sequence of the batch, starting at its own index. In the mode "circular", indices wrap around."""
    axis %= past_cache.ndim
    if axis == 0:
        raise ModelError("its attribute axis is the dimension of the batch, the first one")
    start = jnp.zeros(past_cache.shape[:1], jnp.int32) if write_indices is None else write_indices
    indices = start[:, None] + jnp.arange(update.shape[axis], dtype=start.dtype)
    if mode == "circular":
        indices %= past_cache.shape[axis]
    batch = jax.lax.broadcasted_iota(indices.dtype, indices.shape, 0)
    cache = jnp.moveaxis(past_cache, axis, 1).at[batch, indices].set(jnp.moveaxis(update, axis, 1))
    return jnp.moveaxis(cache, 1, axis)
