"""Resizing images with onnxruntime's arithmetic, rounding by rounding: integers are truncated, so a last bit decides."""

import dataclasses
import functools
import itertools

import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact, rounding
from jquant.errors import ModelError
from jquant.onnx.converters.sampling import cubic_weights
from jquant.onnx.registry import converter
from jquant.onnx.values import sizes as as_sizes

_TIE = np.float32(1e-6)  # how far from the middle between two pixels still counts as the middle
_REACH = {"linear": 1, "cubic": 2}  # of the kernels
_ANTIALIASED_BITS = 22  # of the fractions by which 8-bit integers are multiplied
_CHANNELS_LAST_BITS = 10  # of those for 8-bit images whose channels are last


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
    if way.mode != "nearest" and way.mode not in _REACH:
        raise ModelError(f"mode = {way.mode!r} is not supported")
    if scales is not None:
        scales = [np.float32(scale) for scale in scales]
        sizes = [
            x.shape[axis] if scale == 1 else int(np.float32(x.shape[axis]) * scale)
            for axis, scale in zip(axes, scales, strict=True)
        ]
    elif sizes is not None:
        scales, sizes = _scales(x, axes, sizes, policy)
    else:
        raise ModelError("neither scales nor sizes are given")
    if all(size == x.shape[axis] for axis, size in zip(axes, sizes, strict=True)):
        return x  # whatever the scales are
    regions = roi if way.coordinates == "tf_crop_and_resize" and roi is not None else [0] * len(axes) + [1] * len(axes)
    resized, outside = {}, None
    for i, axis in enumerate(axes):
        size, scale = x.shape[axis], scales[i]
        if scale == 1:
            continue
        positions = _positions(size, sizes[i], scale, regions[i], regions[i + len(axes)], way.coordinates)
        resized[axis] = _Dimension(size, scale, positions)
        if way.coordinates == "tf_crop_and_resize":
            beyond = _along(axis, (positions < 0) | (positions > size - 1), x.ndim)
            outside = beyond if outside is None else outside | beyond
    result = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}[way.mode](x, resized, way)
    return result if outside is None else jnp.where(outside, jnp.asarray(way.extrapolation, x.dtype), result)


def _scales(x, axes, sizes, policy):
    """The scales for these sizes; and the sizes, which change if the aspect ratio is to be kept."""
    scales = [
        np.float32(1) if size == x.shape[axis] else np.float32(size) / np.float32(x.shape[axis])
        for axis, size in zip(axes, sizes, strict=True)
    ]
    if policy == "stretch":
        return scales, sizes
    scale = {"not_larger": min, "not_smaller": max}[policy](scales)
    lengths = [float(scale * np.float32(x.shape[axis])) for axis in axes]
    return [scale] * len(axes), [int(length + 0.5) for length in lengths]


@dataclasses.dataclass(frozen=True)
class _Dimension:
    """What becomes of a dimension.

    Attributes:
      size: in the image.
      positions: in the image, float32, of the elements of the result.
    """

    size: int
    scale: np.float32
    positions: np.ndarray

    @classmethod
    def unchanged(cls, size):
        return cls(size, np.float32(1), np.arange(size, dtype=np.float32))


def _positions(size, count, scale, start, end, coordinates):
    """The positions in the image of the `count` elements of the result, rounded to float32 where onnxruntime does."""
    half, last = np.float32(0.5), np.float32(size - 1)
    places = np.arange(count, dtype=np.float32)
    if coordinates == "asymmetric":
        return places / scale
    if coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and count > 1):
        return (places + half) / scale - half
    if coordinates == "tf_half_pixel_for_nn":
        return (places + half) / scale
    if coordinates == "half_pixel_symmetric":
        adjustment = np.float32(count) / (scale * np.float32(size))
        offset = np.float32(size) / 2 * (1 - adjustment)
        return (offset + (places.astype(np.float64) + 0.5) / scale - 0.5).astype(np.float32)
    if coordinates == "align_corners" and count != 1:
        return places * last / np.float32(count - 1)
    if coordinates in ("pytorch_half_pixel", "align_corners"):
        return np.zeros(count, np.float32)
    if coordinates == "tf_crop_and_resize":
        start, end = np.float32(start), np.float32(end)
        if count <= 1:
            return np.full(count, 0.5 * np.float64(start + end) * last, np.float32)
        return start * last + places * (end - start) * last / np.float32(count - 1)
    raise ModelError(f"coordinate_transformation_mode = {coordinates!r} is not supported")


def _nearest(x, resized, way):
    for axis, dimension in resized.items():
        index = np.clip(_rounded(dimension, way.nearest), 0, dimension.size - 1)
        factor = len(index) // dimension.size
        if np.array_equal(index, np.repeat(np.arange(dimension.size), factor)):
            x = jnp.repeat(x, factor, axis)
        else:
            x = jnp.take(x, index, axis, mode="clip")
    return x


def _rounded(dimension, way):
    """The positions as integers. As in onnxruntime, those next to a tie count as ties: their last bits are chance."""
    if way == "simple":
        way = "ceil" if dimension.scale < 1 else "floor"
    below = np.floor(dimension.positions)
    fraction = dimension.positions - below
    is_tie = np.abs(fraction - np.float32(0.5)) <= _TIE
    up = {
        "floor": False,
        "ceil": fraction > 0,
        "round_prefer_floor": (fraction > 0.5) & ~is_tie,
        "round_prefer_ceil": (fraction > 0.5) | is_tie,
    }
    return below.astype(np.int64) + up[way]


def _linear(x, resized, way):
    if way.antialias:
        return _antialiased(x, resized, way)
    together = _together(x.shape, resized)
    if 1 in resized and x.ndim == 4 and x.dtype in (jnp.int8, jnp.uint8):
        weights = {axis: _in_fixed_point(*_between_two(each)) for axis, each in together.items()}
        total = _interpolated(x.astype(jnp.int32), weights)
        return lax.div(total, jnp.full_like(total, 1 << 2 * _CHANNELS_LAST_BITS)).astype(x.dtype)
    return _interpolated(_floating(x), {axis: _between_two(each) for axis, each in together.items()}).astype(x.dtype)


def _together(shape, resized):
    """The dimensions that onnxruntime interpolates together, in order, including those that keep their size."""
    first = 1 if len(shape) == 4 and 1 in resized else {4: 2, 5: 2}.get(len(shape), 0)  # or the channels are the last ones
    axes = range(first, first + (3 if len(shape) in (3, 5) else 2))
    if not set(resized) <= set(axes):
        return dict(sorted(resized.items()))
    kept = {axis: _Dimension.unchanged(shape[axis]) for axis in axes if isinstance(shape[axis], int)}
    return dict(sorted((kept | resized).items()))


def _between_two(dimension):
    """For each position, the pixels before and after it and their weights, of shape (count, 2)."""
    position = np.clip(dimension.positions, 0, np.float32(dimension.size - 1))
    first = position.astype(np.int64)
    indices = np.stack([first, np.minimum(first + 1, dimension.size - 1)], 1)
    weights = np.abs(position[:, None] - indices.astype(np.float32))[:, ::-1]
    return indices, np.where(indices[:, :1] == indices[:, 1:], np.float32(0.5), weights)


def _in_fixed_point(indices, weights):
    after = np.floor(weights[:, 1] * np.float32(1 << _CHANNELS_LAST_BITS)).astype(np.int32)
    return indices, np.stack([(1 << _CHANNELS_LAST_BITS) - after, after], 1)


def _interpolated(x, weights):
    """A sum over neighbours.

    Args:
      weights: for each dimension, indices and weights of shape (count, neighbours).
    """
    taken, factors = [x], []
    for axis, (indices, each) in weights.items():
        taken = [jnp.take(part, index, axis, mode="clip") for part in taken for index in indices.T]
        factors.append([_along(axis, jnp.asarray(weight, x.dtype), x.ndim) for weight in each.T])
    products = [functools.reduce(_product, chosen[::-1]) for chosen in itertools.product(*factors)]
    return functools.reduce(_sum, map(_product, products, taken))


def _cubic(x, resized, way):
    """onnxruntime enlarges images whose channels are last as if they were to be antialiased, which it computes otherwise."""
    channels_last = x.ndim == 4 and 1 in resized and all(each.scale >= 1 for each in resized.values())
    if way.antialias or channels_last:
        return _antialiased(x, resized, way)
    result = _floating(x)
    for axis in sorted(resized, reverse=True):
        indices, weights = _among_four(resized[axis], way)
        total = functools.reduce(np.add, weights.T)[:, None]
        if not way.exclude_outside or axis == x.ndim - 1:
            result = _interpolated(result, {axis: (indices, weights / total if way.exclude_outside else weights)})
        else:  # as onnxruntime does, which divides products here, and weights there
            terms = zip(indices.T, weights.T, strict=True)
            divisor = _along(axis, jnp.asarray(total[:, 0], result.dtype), x.ndim)
            parts = [_quotient(_interpolated(result, {axis: (i[:, None], w[:, None])}), divisor) for i, w in terms]
            result = functools.reduce(_sum, parts)
    return result.astype(x.dtype)


def _among_four(dimension, way):
    """For each position, the four pixels around it and their weights, of shape (count, 4)."""
    first = np.floor(dimension.positions)
    weights = cubic_weights(dimension.positions - first, np.float32(way.cubic), np)
    indices = first.astype(np.int64)[:, None] + np.arange(-1, 3)
    inside = np.clip(indices, 0, dimension.size - 1)
    return inside, np.where(indices == inside, weights, 0) if way.exclude_outside else weights


def _antialiased(x, resized, way):
    """One dimension after another, the last one first, each rounded to integers if the image is."""
    for axis in sorted(resized, reverse=True):
        if len(resized[axis].positions) == x.shape[axis]:
            continue
        indices, weights = _stretched(resized[axis], way)
        if x.dtype in (jnp.int8, jnp.uint8):
            fixed = weights.astype(np.float64) * (1 << _ANTIALIASED_BITS)
            weights = (np.sign(fixed) * np.floor(np.abs(fixed) + 0.5)).astype(np.int32)
            total = _interpolated(x.astype(jnp.int32), {axis: (indices, weights)}) + (1 << _ANTIALIASED_BITS - 1)
            x = jnp.clip(total >> _ANTIALIASED_BITS, 0, 255).astype(x.dtype)  # also if they are signed
        else:
            result = _interpolated(_floating(x), {axis: (indices, weights)})
            x = result if result.dtype == x.dtype else rounding.round_half_away(result).astype(x.dtype)
    return x


def _stretched(dimension, way):
    """For each position, the pixels that a kernel reaches which is stretched where the image shrinks, and their weights.

    What lies outside of the image counts as its outermost pixel, unless it is excluded. All of shape (count, neighbours).
    """
    half, size = np.float32(0.5), dimension.size
    inverse = np.float32(1) / dimension.scale
    support = _REACH[way.mode] * max(inverse, np.float32(1))
    shrunk = np.float32(1) / inverse if inverse >= 1 else np.float32(1)
    centre = half + dimension.positions
    first, end = (np.floor(each).astype(np.int64) for each in (centre - support + half, centre + support + half))
    first_inside, end_inside = (np.clip(each, 0, size) for each in (first, end))
    if way.exclude_outside:
        first, end = first_inside, end_inside
    indices = first[:, None] + np.arange(max(1, int((end - first).max())))
    distances = (indices.astype(np.float32) - centre[:, None] + half) * shrunk
    kernel = _triangle if way.mode == "linear" else functools.partial(_cubic_kernel, a=np.float32(way.cubic))
    weights = np.where(indices < end[:, None], kernel(distances), np.float32(0))
    total = functools.reduce(np.add, weights.T)
    is_reached = (indices < end[:, None]) & (first_inside < end_inside)[:, None]
    inside = np.clip(indices, 0, size - 1)
    gathered = np.where(is_reached & (indices == inside), weights, 0)
    for column in range(indices.shape[1]):  # the weight of what lies outside is added to that of the outermost pixel
        row = np.flatnonzero(is_reached[:, column] & (indices[:, column] != inside[:, column]))
        gathered[row, inside[row, column] - first[row]] += weights[row, column]
    return inside, gathered * np.where(total == 0, np.float32(1), 1 / total)[:, None]


def _triangle(t):
    return np.maximum(0, 1 - np.abs(t))


def _cubic_kernel(t, a):
    t = np.abs(t)
    near, far = ((a + 2) * t - (a + 3)) * t * t + 1, (((t - 5) * t + 8) * t - 4) * a
    return np.where(t < 1, near, np.where(t < 2, far, 0))


def _along(axis, values, rank):
    """A vector as an array that varies along one dimension."""
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])


def _floating(x):
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


def _product(a, b):
    return exact.product(a, b) if a.dtype == jnp.float32 else a * b


def _sum(a, b):
    return exact.sum(a, b) if a.dtype == jnp.float32 else a + b


def _quotient(a, b):
    return exact.quotient(a, b) if a.dtype == jnp.float32 else a / b
