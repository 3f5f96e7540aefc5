"""Shapes: what reads them, what changes them, and what is made of them alone."""

import jax.numpy as jnp
import numpy as np

from jquant.onnx.registry import converter
from jquant.onnx.values import from_sizes, sizes, to_jax


@converter("Shape", since=1)
def shape(data, *, start=0, end=None, xp):
    return from_sizes(data.shape[start:end])


@converter("Size", since=1)
def size(data, *, xp):
    count = 1
    for each in data.shape:
        count = count * each
    return from_sizes([count]).reshape(())


@converter("Reshape", since=5, static=("shape",))
def reshape(data, shape, *, allowzero=0, xp):
    """A 0 keeps the size of that dimension, but with `allowzero`; a -1 is what is left."""
    wanted = sizes(shape)
    kept = wanted if allowzero else tuple(data.shape[i] if each == 0 else each for i, each in enumerate(wanted))
    return xp.reshape(data, kept)


@converter("Unsqueeze", since=1, until=12)
def unsqueeze_to_12(data, *, axes, xp):
    return xp.expand_dims(data, tuple(axes))


@converter("Unsqueeze", since=13, static=("axes",))
def unsqueeze(data, axes, *, xp):
    return xp.expand_dims(data, sizes(axes))


@converter("Squeeze", since=1, until=12)
def squeeze_to_12(data, *, axes=None, xp):
    return xp.squeeze(data, None if axes is None else tuple(axes))


@converter("Squeeze", since=13, static=("axes",))
def squeeze(data, axes=None, *, xp):
    return xp.squeeze(data, None if axes is None else sizes(axes))


@converter("Transpose", since=1)
def transpose(data, *, perm=None, xp):
    return xp.transpose(data, perm)


@converter("Concat", since=4)
def concat(*inputs, axis, xp):
    return xp.concatenate(inputs, axis)


@converter("Expand", since=8, static=("shape",), expands=True)
def expand(input, shape, *, xp):
    return xp.broadcast_to(input, jnp.broadcast_shapes(input.shape, sizes(shape)))


@converter("ConstantOfShape", since=9, static=("input",), expands=True)
def constant_of_shape(input, *, value=None, xp):
    value = np.zeros(1, np.float32) if value is None else value
    if xp is np:
        return np.full(sizes(input), value.item(), value.dtype)
    return jnp.broadcast_to(to_jax(value, "value").reshape(()), sizes(input))


@converter("Range", since=11, static=("start", "limit", "delta"), expands=True)
def range_(start, limit, delta, *, xp):
    (first,), (last,), (step,) = (each.reshape(-1) for each in (start, limit, delta))
    if object in (start.dtype, limit.dtype, delta.dtype):
        return jnp.arange(*sizes([first, last, step]), dtype=jnp.int32)
    count = max(0, int(np.ceil((last - first) / step)))
    found = np.arange(count).astype(start.dtype) * step + first
    return found.astype(start.dtype) if xp is np else to_jax(found.astype(start.dtype), "the range")
