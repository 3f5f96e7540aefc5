"""Resizing images."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

from jquant.onnx.converters.sampling import cubic_weights
from jquant.onnx.errors import ModelError
from jquant.onnx.registry import converter
from jquant.onnx.values import sizes as as_sizes

_ROUNDED = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
}


@dataclasses.dataclass(frozen=True)
class _Way:
    """The attributes of Resize that say how each dimension is computed."""

    mode: str
    coordinates: str = "asymmetric"
    nearest: str = "floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0


@converter("Upsample", since=7, until=8)
def upsample_to_8(x, *, mode, scales):
    return _resize(x, None, np.asarray(scales, np.float32), None, _Way(mode))


@converter("Upsample", since=9, until=9, static=("scales",))
def upsample(x, scales, *, mode):
    return _resize(x, None, scales, None, _Way(mode))


@converter("Resize", since=10, until=10, static=("scales",))
def resize_10(x, scales, *, mode):
    """ONNX does not say which pixel is nearest. onnxruntime takes the one before, or, where an image shrinks, after."""
    return _resize(x, None, scales, None, _Way(mode, nearest="simple"))


@converter("Resize", since=11, static=("roi", "scales", "sizes"))
def resize(
    x,
    roi=None,
    scales=None,
    sizes=None,
    *,
    antialias=0,
    axes=None,
    coordinate_transformation_mode,
    cubic_coeff_a,
    exclude_outside,
    extrapolation_value,
    keep_aspect_ratio_policy="stretch",
    mode,
    nearest_mode,
):
    """Positions are computed in float32, as in onnxruntime, because rounding decides for those between two pixels."""
    way = _Way(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(antialias),
        bool(exclude_outside),
        extrapolation_value,
    )
    scales = None if scales is None or not scales.size else scales
    sizes = None if sizes is None or not sizes.size else as_sizes(sizes)
    axes = None if axes is None else [axis % x.ndim for axis in axes]
    return _resize(x, roi, scales, sizes, way, axes, keep_aspect_ratio_policy)


def _resize(x, roi, scales, sizes, way, axes=None, policy="stretch"):
    axes = list(range(x.ndim)) if axes is None else axes
    if scales is not None:
        scales = [np.float32(scale) for scale in scales]
        lengths = [
            x.shape[axis] if scale == 1 else np.float32(x.shape[axis]) * scale
            for axis, scale in zip(axes, scales, strict=True)
        ]
        sizes = [length if scale == 1 else int(length) for length, scale in zip(lengths, scales, strict=True)]
    elif sizes is not None:
        scales, lengths, sizes = _scales(x, axes, sizes, policy)
    else:
        raise ModelError("neither scales nor sizes are given")
    whole = [0] * len(axes) + [1] * len(axes)
    regions = whole if way.coordinates != "tf_crop_and_resize" or roi is None else roi
    dtype, result, outside = x.dtype, x, None
    wide = not jnp.issubdtype(dtype, jnp.floating) and way.mode != "nearest"
    for i, axis in enumerate(axes):
        start, end = regions[i], regions[i + len(axes)]
        if sizes[i] == x.shape[axis] and scales[i] == 1 and (start, end) == (0, 1):
            continue
        result = result.astype(jnp.float32) if wide else result
        positions = _positions(x.shape[axis], sizes[i], lengths[i], scales[i], start, end, way.coordinates)
        result = _along(result, axis, positions, scales[i], way)
        if way.coordinates == "tf_crop_and_resize":
            beyond = (positions < 0) | (positions > x.shape[axis] - 1)
            beyond = beyond.reshape([-1 if j == axis else 1 for j in range(x.ndim)])
            outside = beyond if outside is None else outside | beyond
    result = result.astype(dtype)
    return result if outside is None else jnp.where(outside, jnp.asarray(way.extrapolation, dtype), result)


def _scales(x, axes, sizes, policy):
    """The scales for these sizes; and the sizes, with the aspect ratio kept if it is to be, as they are and as integers."""
    scales = [
        np.float32(1) if size == x.shape[axis] else np.float32(size) / np.float32(x.shape[axis])
        for axis, size in zip(axes, sizes, strict=True)
    ]
    if policy == "stretch":
        return scales, sizes, sizes
    scale = {"not_larger": min, "not_smaller": max}[policy](scales)
    lengths = [scale * np.float32(x.shape[axis]) for axis in axes]
    return [scale] * len(axes), lengths, [int(length + np.float32(0.5)) for length in lengths]


def _positions(size, count, length, scale, start, end, coordinates):
    """The positions in the image of the elements of the result, float32. `length` is `count` before truncation."""
    half, last, length = np.float32(0.5), np.float32(size - 1), np.float32(length)
    places = np.arange(count, dtype=np.float32)
    if coordinates == "asymmetric":
        return places / scale
    if coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and count > 1):
        return (places + half) / scale - half
    if coordinates == "tf_half_pixel_for_nn":
        return (places + half) / scale
    if coordinates == "half_pixel_symmetric":
        centre = np.float32(size) / 2
        return centre - centre * (np.float32(count) / length) + (places + half) / scale - half
    if coordinates == "align_corners" and length != 1:
        return places * last / (length - 1)
    if coordinates in ("pytorch_half_pixel", "align_corners"):
        return np.zeros(count, np.float32)
    if coordinates == "tf_crop_and_resize":
        start, end = np.float32(start), np.float32(end)
        if length == 1:
            return np.full(count, half * (start + end) * last)
        return start * last + places * (end - start) * last / (length - 1)
    raise ModelError(f"coordinate_transformation_mode = {coordinates!r} is not supported")


def _along(x, axis, positions, scale, way):
    """Resizes one dimension."""
    size = x.shape[axis]
    if way.mode == "nearest":
        name = way.nearest if way.nearest != "simple" else "ceil" if scale < 1 else "floor"
        index = np.clip(_ROUNDED[name](positions).astype(np.int64), 0, size - 1)
        factor = len(index) // size
        if np.array_equal(index, np.repeat(np.arange(size), factor)):
            return jnp.repeat(x, factor, axis)
        return jnp.take(x, index, axis, mode="clip")
    indices, weights = _neighbours(positions, scale, way)
    outside = (indices < 0) | (indices >= size)
    if way.exclude_outside or way.antialias:
        weights = np.where(outside, 0, weights) if way.exclude_outside else weights
        weights = weights / weights.sum(1, keepdims=True)
    indices = np.clip(indices, 0, size - 1)
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    terms = [
        jnp.take(x, index, axis, mode="clip") * jnp.asarray(weight.reshape(shape), x.dtype)
        for index, weight in zip(indices.T, weights.T, strict=True)
    ]
    return functools.reduce(jnp.add, terms)


def _neighbours(positions, scale, way):
    """For each position, the pixels that count and their weights, both of shape (count, neighbours)."""
    first = np.floor(positions)
    distance = positions - first
    if way.mode == "linear":
        support, kernel = 1, lambda t: np.maximum(0, 1 - np.abs(t))
    elif way.mode == "cubic":
        support, kernel = 2, lambda t: _cubic_kernel(t, np.float32(way.cubic))
    else:
        raise ModelError(f"mode = {way.mode!r} is not supported")
    stretch = min(scale, np.float32(1)) if way.antialias else np.float32(1)
    if stretch == 1:
        weights = np.stack([1 - distance, distance], -1) if support == 1 else cubic_weights(distance, way.cubic, np)
        return first.astype(np.int64)[:, None] + np.arange(1 - support, 1 + support), weights
    width = int(np.ceil(support / stretch))
    offsets = np.arange(-width, width + 1)
    return first.astype(np.int64)[:, None] + offsets, kernel((offsets - distance[:, None]) * stretch)


def _cubic_kernel(t, a):
    t = np.abs(t)
    near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))
