"""Concatenating, splitting, padding and cropping tensors."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.onnx.graphs.values import sizes
from jquant.onnx.running.registry import converter


@converter("Concat", since=4)
def concat(*inputs, axis, xp):
    return xp.concatenate(inputs, axis)


@converter("Split", since=2, until=12)
def split_to_12(input, *, axis, split=None, outputs, xp):
    return _parts(input, axis, split, outputs, xp)


@converter("Split", since=13, static=("split",))
def split(input, split=None, *, axis, num_outputs=None, outputs, xp):
    """Without `split`, the parts are of equal size, except that the last may be smaller."""
    return _parts(input, axis, None if split is None else sizes(split), num_outputs or outputs, xp)


def _parts(input, axis, lengths, count, xp):
    if lengths is None:
        part_size = -(-input.shape[axis] // count)
        ends = [min(part_size * i, input.shape[axis]) for i in range(1, count)]
    else:
        ends = list(np.cumsum(lengths))[:-1]
    return tuple(xp.split(input, ends, axis))


@converter("Pad", since=2, until=10)
def pad_to_10(data, *, pads, mode, value):
    return _padded(data, pads, np.asarray(value, data.dtype), range(data.ndim), mode)


@converter("Pad", since=11, static=("pads", "axes"))
def pad(data, pads, constant_value=None, axes=None, *, mode):
    constant_value = jnp.zeros((), data.dtype) if constant_value is None else constant_value.reshape(())
    return _padded(data, sizes(pads), constant_value, range(data.ndim) if axes is None else sizes(axes), mode)


def _padded(data, pads, value, axes, mode):
    """
    Args:
      pads: how many elements to add before each of the axes, then how many after each; a negative number crops.
    """
    widths = [(0, 0)] * data.ndim
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        widths[axis] = (before, after)
    if mode == "constant":
        return lax.pad(data, jnp.asarray(value, data.dtype), [(*each, 0) for each in widths])
    cropped = data[
        tuple(
            slice(max(0, -before), size - max(0, -after)) for (before, after), size in zip(widths, data.shape, strict=True)
        )
    ]
    return jnp.pad(cropped, [(max(0, before), max(0, after)) for before, after in widths], mode=mode)


@converter("CenterCropPad", since=18, static=("shape",))
def center_crop_pad(input, shape, *, axes=None):
    """Pads or crops half on each side; if the number of elements is odd, the larger half is at the end."""
    widths = [(0, 0, 0)] * input.ndim
    for axis, size in zip(range(input.ndim) if axes is None else axes, sizes(shape), strict=True):
        total = size - input.shape[axis]
        before = total // 2 if total >= 0 else -(-total // 2)
        widths[axis] = (before, total - before, 0)
    return lax.pad(input, jnp.zeros((), input.dtype), widths)
