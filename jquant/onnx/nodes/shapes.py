"""Operators that return shapes, and operators that change the shape or the layout of a tensor but not its elements."""

import math

import jax.numpy as jnp

from jquant.errors import ModelError
from jquant.onnx.graphs.values import from_sizes, sizes
from jquant.onnx.running.registry import converter


@converter("Shape", since=1)
def shape(data, *, start=0, end=None, xp):
    return from_sizes(data.shape[start:end])


@converter("Size", since=1)
def size(data, *, xp):
    return from_sizes([math.prod(data.shape)]).reshape(())


@converter("Reshape", since=5, static=("shape",))
def reshape(data, shape, *, allowzero=0, xp):
    """A 0 keeps the size of that dimension, unless `allowzero` is set; a -1 is inferred."""
    target = sizes(shape)
    if not allowzero:
        target = tuple(data.shape[i] if size == 0 else size for i, size in enumerate(target))
    return xp.reshape(data, _inferred_beside_zero(data.shape, target))


def _inferred_beside_zero(shape, target):
    """Infers a -1 beside a 0 from the other nonzero sizes. NumPy infers it only where no size is 0."""
    if -1 not in target or 0 not in target:
        return target
    count, others = (math.prod(size for size in each if size not in (0, -1)) for each in (shape, target))
    if count % others:
        raise ModelError(f"the -1 in {list(target)} cannot be inferred from {list(shape)}")
    return tuple(count // others if size == -1 else size for size in target)


@converter("Flatten", since=1)
def flatten(input, *, axis, xp):
    axis = axis + input.ndim if axis < 0 else axis
    return xp.reshape(input, (math.prod(input.shape[:axis]), math.prod(input.shape[axis:])))


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


@converter("Expand", since=8, static=("shape",), expands=True)
def expand(input, shape, *, xp):
    return xp.broadcast_to(input, jnp.broadcast_shapes(input.shape, sizes(shape)))


@converter("Tile", since=6, static=("repeats",), expands=True)
def tile(input, repeats, *, xp):
    return xp.tile(input, sizes(repeats))


@converter("DepthToSpace", since=1)
def depth_to_space(input, *, blocksize, mode="DCR"):
    """Blocks of channels become blocks of pixels."""
    batch, channels, height, width = input.shape
    depth = channels // blocksize**2
    if mode == "DCR":
        parts = input.reshape(batch, blocksize, blocksize, depth, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = input.reshape(batch, depth, blocksize, blocksize, height, width).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(batch, depth, height * blocksize, width * blocksize)


@converter("SpaceToDepth", since=1)
def space_to_depth(input, *, blocksize, mode="DCR"):
    """Blocks of pixels become blocks of channels."""
    batch, channels, height, width = input.shape
    parts = input.reshape(batch, channels, height // blocksize, blocksize, width // blocksize, blocksize)
    parts = parts.transpose((0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return parts.reshape(batch, channels * blocksize**2, height // blocksize, width // blocksize)
