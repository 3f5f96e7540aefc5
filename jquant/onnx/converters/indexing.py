"""Parts of tensors: slices, look-ups, updates."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.onnx.registry import converter
from jquant.onnx.values import sizes


@converter("Gather", since=1)
def gather(data, indices, *, axis, xp):
    """Negative indices count from the end."""
    if xp is np:
        return np.take(data, indices.astype(np.int64), axis)
    size = data.shape[axis]
    return jnp.take(data, jnp.where(indices < 0, indices + size, indices), axis, mode="clip")


@converter("Slice", since=1, until=9)
def slice_to_9(data, *, starts, ends, axes=None, xp):
    return _slice(data, starts, ends, axes, None)


@converter("Slice", since=10, static=("starts", "ends", "axes", "steps"))
def slice_(data, starts, ends, axes=None, steps=None, *, xp):
    given = (None if each is None else sizes(each) for each in (starts, ends, axes, steps))
    return _slice(data, *given)


def _slice(data, starts, ends, axes, steps):
    """NumPy's slices, which clamp what lies outside as ONNX does; but for the end of a reversed one."""
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0 and not jax.export.is_symbolic_dim(data.shape[axis]) and end < -data.shape[axis]:
            end = None
        index[axis] = slice(_bound(start), _bound(end), step)
    return data[tuple(index)]


def _bound(value):
    """Exporters write the largest integer for "to the end"."""
    if value is None or jax.export.is_symbolic_dim(value):
        return value
    return None if value >= 2**31 - 1 else max(value, -(2**31))


@converter("ScatterND", since=11)
def scatter_nd(data, indices, updates, *, reduction="none"):
    places = tuple(jnp.moveaxis(indices, -1, 0))
    at = data.at[places]
    return {"none": at.set, "add": at.add, "mul": at.multiply, "max": at.max, "min": at.min}[reduction](updates)
