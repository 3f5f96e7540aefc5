"""Pooling over windows, over whole images, and over regions of interest."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.graphs.values import sizes
from jquant.onnx.nodes.sampling import sample
from jquant.onnx.nodes.vectors import along_axis
from jquant.onnx.nodes.windows import Window, WindowAttributes, resolve_pool_padding
from jquant.onnx.running.registry import AttributeGroup, converter


@converter("MaxPool", since=1)
def max_pool(x, *, attributes: WindowAttributes, ceil_mode=0, kernel_shape, storage_order=0, outputs):
    """Among equal elements, the first is the largest. An index counts the elements of the whole tensor; with
    `storage_order`, those of an image whose dimensions are in reverse order."""
    shape = x.shape
    x, window = _cropped_with_window(x, kernel_shape, attributes, ceil_mode)
    if outputs == 1:
        return _reduce(x, window, _lowest(x.dtype), lax.max)
    indices = jnp.arange(math.prod(shape), dtype=jnp.int32).reshape(shape)
    indices, _ = _cropped_with_window(indices, kernel_shape, attributes, ceil_mode)
    largest, indices = lax.reduce_window(
        (x, indices),
        (jnp.asarray(_lowest(x.dtype)), jnp.int32(-1)),
        _first_of_largest,
        (1, 1, *window.kernel),
        (1, 1, *window.strides),
        window.padding,
        window_dilation=(1, 1, *window.dilations),
    )
    return largest, _in_reverse_order(indices, shape[2:]) if storage_order else indices


def _cropped_with_window(x, kernel_shape, attributes, ceil_mode, is_average=False):
    """The tensor, cropped where its padding is negative, and the window from ONNX's attributes."""
    x, attributes, overhang = resolve_pool_padding(x, kernel_shape, attributes, is_average)
    return x, Window.from_attributes(x.shape, kernel_shape, attributes, ceil_mode=ceil_mode, overhang=overhang)


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


def _in_reverse_order(indices, shape):
    """Converts indices of the elements of images to those of images whose dimensions are in reverse order."""
    size = math.prod(shape)
    order = np.arange(size, dtype=np.int32).reshape(shape[::-1]).T.reshape(-1)
    return indices - indices % size + jnp.take(order, indices % size)


def _first_of_largest(a, b):
    """The larger of two (value, index) pairs. An index of -1 marks padding, which is never the larger."""
    (value_a, index_a), (value_b, index_b) = a, b
    takes_b = (index_a < 0) | (index_b >= 0) & ((value_b > value_a) | (value_b == value_a) & (index_b < index_a))
    return jnp.where(takes_b, value_b, value_a), jnp.where(takes_b, index_b, index_a)


@converter("AveragePool", since=7)
def average_pool(x, *, attributes: WindowAttributes, ceil_mode=0, count_include_pad, kernel_shape):
    """The sum of a window is divided by the number of elements that count: padding counts only if included, and what lies
    beyond it never does."""
    x, window = _cropped_with_window(x, kernel_shape, attributes, ceil_mode, is_average=True)
    total = _reduce(x, window, np.array(0, x.dtype), lax.add)
    for axis, size in enumerate(x.shape[2:]):
        count = _counts(size, window, axis, count_include_pad)
        total = total / along_axis(jnp.asarray(count, x.dtype), axis + 2, x.ndim)
    return total


def _counts(size, window, axis, count_include_pad):
    """The number of elements that count in each window along one dimension."""
    low, high = window.pads[axis]
    if not any((low, high, window.ceiling[axis])) or (count_include_pad and not window.ceiling[axis]):
        return np.full(1, window.kernel[axis])
    windows = (size + low + high + window.ceiling[axis] - window.spans[axis]) // window.strides[axis] + 1
    positions = jnp.arange(windows)[:, None] * window.strides[axis] - low
    positions = positions + np.arange(window.kernel[axis]) * window.dilations[axis]
    first, end = (-low, size + high) if count_include_pad else (0, size)
    return jnp.maximum(jnp.sum((positions >= first) & (positions < end), 1), 1)  # the mean of no elements is 0


@converter("LpPool", since=2)
def norm_pool(x, *, attributes: WindowAttributes, ceil_mode=0, kernel_shape, p):
    x, window = _cropped_with_window(x, kernel_shape, attributes, ceil_mode)
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
    """Puts elements back where `MaxPool` found them. A larger `output_shape` adds zeros at the ends."""
    rank = len(kernel_shape)
    strides, pads = strides or [1] * rank, pads or [0] * 2 * rank
    spatial = [(size - 1) * strides[i] + kernel_shape[i] - pads[i] - pads[rank + i] for i, size in enumerate(x.shape[2:])]
    shape = (*x.shape[:2], *spatial)
    unpooled = jnp.zeros(math.prod(shape), x.dtype).at[indices.reshape(-1)].set(x.reshape(-1)).reshape(shape)
    if output_shape is None:
        return unpooled
    return jnp.pad(unpooled, [(0, target - size) for size, target in zip(shape, sizes(output_shape), strict=True)])


@dataclasses.dataclass(frozen=True)
class RegionAttributes(AttributeGroup):
    mode: str
    output_height: int
    output_width: int
    sampling_ratio: int
    spatial_scale: float


@converter("RoiAlign", since=10, until=15)
def align_regions_to_15(x, rois, batch_indices, *, attributes: RegionAttributes):
    return _align(x, rois, batch_indices, attributes, half_pixel=False)


@converter("RoiAlign", since=16)
def align_regions(x, rois, batch_indices, *, attributes: RegionAttributes, coordinate_transformation_mode):
    return _align(x, rois, batch_indices, attributes, half_pixel=coordinate_transformation_mode == "half_pixel")


def _align(x, rois, batch_indices, attributes, *, half_pixel):
    mode, sampling_ratio, spatial_scale = attributes.mode, attributes.sampling_ratio, attributes.spatial_scale
    shape = attributes.output_height, attributes.output_width
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
    samples = jnp.where(inside[:, None], samples, 0)  # 0 more than one pixel outside of the image
    blocks = samples.reshape(*samples.shape[:2], shape[0], sampling_ratio, shape[1], sampling_ratio)
    return jnp.max(blocks, (3, 5)) if mode == "max" else jnp.mean(blocks, (3, 5))
