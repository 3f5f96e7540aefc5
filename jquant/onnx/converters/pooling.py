"""Pooling over windows, or over a whole image."""

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.converters.sampling import sample
from jquant.onnx.converters.windows import Window, resolved_pool
from jquant.onnx.registry import converter
from jquant.onnx.values import sizes


@converter("MaxPool", since=1)
def max_pool(
    x,
    *,
    auto_pad,
    ceil_mode=0,
    dilations=None,
    kernel_shape,
    pads=None,
    storage_order=0,
    strides=None,
    outputs,
):
    """Of equal elements, the first is the largest. An index counts the elements of the whole tensor; with `storage_order`,
    those of an image whose dimensions are in reverse order."""
    shape, given = x.shape, (kernel_shape, strides, dilations, pads, auto_pad)
    x, pads, behind = resolved_pool(x, *given)
    window = Window.of(x.shape, kernel_shape, strides, dilations, pads, ceil_mode, behind)
    if outputs == 1:
        return _reduce(x, window, _lowest(x.dtype), lax.max)
    places, _, _ = resolved_pool(jnp.arange(math.prod(shape), dtype=jnp.int32).reshape(shape), *given)
    largest, indices = lax.reduce_window(
        (x, places),
        (jnp.asarray(_lowest(x.dtype)), jnp.int32(-1)),
        _first_of_largest,
        (1, 1, *window.kernel),
        (1, 1, *window.strides),
        window.padding,
        window_dilation=(1, 1, *window.dilations),
    )
    return largest, _reversed(indices, shape[2:]) if storage_order else indices


def _lowest(dtype):
    return np.array(-np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min, dtype)


def _reduce(x, window, start, function):
    return lax.reduce_window(
        x,
        start,
        function,
        (1, 1, *window.kernel),
        (1, 1, *window.strides),
        window.padding,
        window_dilation=(1, 1, *window.dilations),
    )


def _reversed(indices, shape):
    """Converts indices of elements of images to those for images whose dimensions are in reverse order."""
    size = math.prod(shape)
    order = np.arange(size, dtype=np.int32).reshape(shape[::-1]).T.reshape(-1)
    return indices - indices % size + jnp.take(order, indices % size)


def _first_of_largest(a, b):
    """An index of -1 is padding, which is never larger than anything."""
    (value_a, index_a), (value_b, index_b) = a, b
    takes_b = (index_a < 0) | (index_b >= 0) & ((value_b > value_a) | (value_b == value_a) & (index_b < index_a))
    return jnp.where(takes_b, value_b, value_a), jnp.where(takes_b, index_b, index_a)


@converter("AveragePool", since=7)
def average_pool(x, *, auto_pad, ceil_mode=0, count_include_pad, dilations=None, kernel_shape, pads=None, strides=None):
    """A window is divided by the number of elements that count: padding only if included, and never what lies beyond it."""
    x, pads, behind = resolved_pool(x, kernel_shape, strides, dilations, pads, auto_pad, is_average=True)
    window = Window.of(x.shape, kernel_shape, strides, dilations, pads, ceil_mode, behind)
    total = _reduce(x, window, np.array(0, x.dtype), lax.add)
    for axis, size in enumerate(x.shape[2:]):
        count = _counts(size, window, axis, count_include_pad)
        total = total / jnp.asarray(count, x.dtype).reshape([-1 if i == axis + 2 else 1 for i in range(x.ndim)])
    return total


def _counts(size, window, axis, count_include_pad):
    """For each window along one dimension, how many elements count."""
    low, high = window.pads[axis]
    if not any((low, high, window.ceiling[axis])) or (count_include_pad and not window.ceiling[axis]):
        return np.full(1, window.kernel[axis])
    windows = (size + low + high + window.ceiling[axis] - window.spans[axis]) // window.strides[axis] + 1
    places = jnp.arange(windows)[:, None] * window.strides[axis] - low
    places = places + np.arange(window.kernel[axis]) * window.dilations[axis]
    first, end = (-low, size + high) if count_include_pad else (0, size)
    return jnp.maximum(jnp.sum((places >= first) & (places < end), 1), 1)  # of no elements, the mean is 0


@converter("LpPool", since=2)
def norm_pool(x, *, auto_pad, ceil_mode=0, dilations=None, kernel_shape, p, pads=None, strides=None):
    x, pads, behind = resolved_pool(x, kernel_shape, strides, dilations, pads, auto_pad)
    window = Window.of(x.shape, kernel_shape, strides, dilations, pads, ceil_mode, behind)
    return _root(_reduce(_power(x, p), window, np.array(0, x.dtype), lax.add), p)


def _power(x, p):
    return jnp.abs(x) if p == 1 else x * x if p == 2 else jnp.abs(x) ** p


def _root(x, p):
    return x if p == 1 else jnp.sqrt(x) if p == 2 else x ** (1 / p)


@converter("GlobalAveragePool", since=1)
def global_average_pool(x):
    return jnp.mean(x, tuple(range(2, x.ndim)), keepdims=True)


@converter("GlobalMaxPool", since=1)
def global_max_pool(x):
    return jnp.max(x, tuple(range(2, x.ndim)), keepdims=True)


@converter("GlobalLpPool", since=2)
def global_norm_pool(x, *, p):
    return _root(jnp.sum(_power(x, p), tuple(range(2, x.ndim)), keepdims=True), p)


@converter("MaxUnpool", since=9, static=("output_shape",))
def max_unpool(x, indices, output_shape=None, *, kernel_shape, pads=None, strides=None):
    """Puts elements back where `MaxPool` found them. A larger `output_shape` leaves zeros at the ends."""
    rank = len(kernel_shape)
    strides, pads = strides or [1] * rank, pads or [0] * 2 * rank
    spatial = [(size - 1) * strides[i] + kernel_shape[i] - pads[i] - pads[rank + i] for i, size in enumerate(x.shape[2:])]
    shape = (*x.shape[:2], *spatial)
    placed = jnp.zeros(math.prod(shape), x.dtype).at[indices.reshape(-1)].set(x.reshape(-1)).reshape(shape)
    if output_shape is None:
        return placed
    return jnp.pad(placed, [(0, wanted - size) for size, wanted in zip(shape, sizes(output_shape), strict=True)])


@converter("RoiAlign", since=10, until=15)
def align_regions_to_15(x, rois, batch_indices, *, mode, output_height, output_width, sampling_ratio, spatial_scale):
    return _align(x, rois, batch_indices, mode, (output_height, output_width), sampling_ratio, spatial_scale, False)


@converter("RoiAlign", since=16)
def align_regions(
    x,
    rois,
    batch_indices,
    *,
    coordinate_transformation_mode,
    mode,
    output_height,
    output_width,
    sampling_ratio,
    spatial_scale,
):
    half_pixel = coordinate_transformation_mode == "half_pixel"
    return _align(x, rois, batch_indices, mode, (output_height, output_width), sampling_ratio, spatial_scale, half_pixel)


def _align(x, rois, batch_indices, mode, shape, sampling_ratio, spatial_scale, half_pixel):
    if sampling_ratio <= 0:
        raise ModelError("a sampling_ratio of 0 would make the number of samples depend on data")
    first, last = (
        each.reshape(-1, 2)[:, ::-1] * spatial_scale - (0.5 if half_pixel else 0) for each in jnp.split(rois, 2, 1)
    )
    extent = last - first if half_pixel else jnp.maximum(last - first, 1)  # (regions, 2), rows before columns
    grid = []
    for i in range(2):
        steps = (np.arange(shape[i] * sampling_ratio, dtype=rois.dtype) + 0.5) / (shape[i] * sampling_ratio)
        grid.append(first[:, i, None] + extent[:, i, None] * steps)
    rows, columns = jnp.broadcast_arrays(grid[0][:, :, None], grid[1][:, None, :])
    samples = sample(
        x[batch_indices],
        [jnp.clip(rows, 0, x.shape[2] - 1), jnp.clip(columns, 0, x.shape[3] - 1)],
        "linear",
        "border",
        largest=mode == "max",
    )
    inside = (rows >= -1) & (rows <= x.shape[2]) & (columns >= -1) & (columns <= x.shape[3])
    samples = jnp.where(inside[:, None], samples, 0)  # 0 further out than one pixel
    blocks = samples.reshape(*samples.shape[:2], shape[0], sampling_ratio, shape[1], sampling_ratio)
    return jnp.max(blocks, (3, 5)) if mode == "max" else jnp.mean(blocks, (3, 5))
