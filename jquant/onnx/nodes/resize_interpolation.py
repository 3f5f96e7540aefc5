"""Nearest-neighbour, linear and cubic interpolation for Resize, in the order in which onnxruntime multiplies and adds."""

import dataclasses
import functools
import itertools

import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact, rounding
from jquant.lowering import materialize
from jquant.onnx.nodes.resize_coordinates import ResizedAxis
from jquant.onnx.nodes.sampling import cubic_weights
from jquant.onnx.nodes.vectors import along_axis

_TIE_TOLERANCE = np.float32(1e-6)  # positions this close to the middle between two pixels count as the middle
_KERNEL_RADIUS = {"linear": 1, "cubic": 2}
_ANTIALIASED_FRACTION_BITS = 22  # of the fixed-point weights of 8-bit integers
_CHANNELS_LAST_FRACTION_BITS = 10  # of the fixed-point weights of 8-bit images whose channels are last


@dataclasses.dataclass(frozen=True)
class Interpolation:
    """The attributes of Resize that say how pixels are interpolated."""

    mode: str
    nearest_mode: str = "floor"
    cubic_coeff_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False


def _nearest(x, resized, interpolation):
    for axis, dimension in resized.items():
        index = np.clip(_nearest_index(dimension, interpolation.nearest_mode), 0, dimension.size - 1)
        factor = len(index) // dimension.size
        if np.array_equal(index, np.repeat(np.arange(dimension.size), factor)):
            x = jnp.repeat(x, factor, axis)
        else:
            x = jnp.take(x, index, axis, mode="clip")
    return x


def _nearest_index(dimension, nearest_mode):
    """The positions as integers. As in onnxruntime, positions next to a tie count as ties, since their last bits are chance.

    Args:
      nearest_mode: as in ONNX; or "simple", for "floor", or "ceil" where the image shrinks.
    """
    if nearest_mode == "simple":
        nearest_mode = "ceil" if dimension.scale < 1 else "floor"
    below = np.floor(dimension.positions)
    fraction = dimension.positions - below
    is_tie = np.abs(fraction - np.float32(0.5)) <= _TIE_TOLERANCE
    rounds_up = {
        "floor": False,
        "ceil": fraction > 0,
        "round_prefer_floor": (fraction > 0.5) & ~is_tie,
        "round_prefer_ceil": (fraction > 0.5) | is_tie,
    }
    return below.astype(np.int64) + rounds_up[nearest_mode]


def _linear(x, resized, interpolation):
    if interpolation.antialias:
        return _antialiased(x, resized, interpolation)
    dimensions = _interpolated_together(x.shape, resized)
    if 1 in resized and x.ndim == 4 and x.dtype in (jnp.int8, jnp.uint8):
        taps = {axis: _fixed_point(*_two_neighbours(each)) for axis, each in dimensions.items()}
        total = _weighted_sum(x.astype(jnp.int32), taps)
        return lax.div(total, jnp.full_like(total, 1 << 2 * _CHANNELS_LAST_FRACTION_BITS)).astype(x.dtype)
    return _weighted_sum(_as_float(x), {axis: _two_neighbours(each) for axis, each in dimensions.items()}).astype(x.dtype)


def _interpolated_together(shape, resized):
    """The dimensions that onnxruntime interpolates together, in order, including those that keep their size."""
    first = 1 if len(shape) == 4 and 1 in resized else {4: 2, 5: 2}.get(len(shape), 0)  # 1 if the channels are last
    axes = range(first, first + (3 if len(shape) in (3, 5) else 2))
    if not set(resized) <= set(axes):
        return dict(sorted(resized.items()))
    kept = {axis: ResizedAxis.unchanged(shape[axis]) for axis in axes if isinstance(shape[axis], int)}
    return dict(sorted((kept | resized).items()))


def _two_neighbours(dimension):
    """For each position, the pixels before and after it and their weights, of shape (count, 2)."""
    position = np.clip(dimension.positions, 0, np.float32(dimension.size - 1))
    first = position.astype(np.int64)
    indices = np.stack([first, np.minimum(first + 1, dimension.size - 1)], 1)
    weights = np.abs(position[:, None] - indices.astype(np.float32))[:, ::-1]
    return indices, np.where(indices[:, :1] == indices[:, 1:], np.float32(0.5), weights)


def _fixed_point(indices, weights):
    after = np.floor(weights[:, 1] * np.float32(1 << _CHANNELS_LAST_FRACTION_BITS)).astype(np.int32)
    return indices, np.stack([(1 << _CHANNELS_LAST_FRACTION_BITS) - after, after], 1)


def _weighted_sum(x, taps):
    """The weighted sum of the neighbours of each position.

    Args:
      taps: for each dimension, indices and weights of shape (count, neighbours).
    """
    pixels, factors = [x], []
    for axis, (indices, weights) in taps.items():
        pixels = [jnp.take(each, index, axis, mode="clip") for each in pixels for index in indices.T]
        factors.append([along_axis(jnp.asarray(weight, x.dtype), axis, x.ndim) for weight in weights.T])
    products = [functools.reduce(_product, corner[::-1]) for corner in itertools.product(*factors)]
    return functools.reduce(_sum, map(_product, products, pixels))


def _cubic(x, resized, interpolation):
    """onnxruntime enlarges images whose channels are last with the arithmetic of antialiasing, which differs."""
    channels_last = x.ndim == 4 and 1 in resized and all(each.scale >= 1 for each in resized.values())
    if interpolation.antialias or channels_last:
        return _antialiased(x, resized, interpolation)
    result = _as_float(x)
    for axis in sorted(resized, reverse=True):
        indices, weights = _four_neighbours(resized[axis], interpolation)
        total = functools.reduce(np.add, weights.T)[:, None]
        if not interpolation.exclude_outside or axis == x.ndim - 1:
            weights = weights / total if interpolation.exclude_outside else weights
            result = _weighted_sum(result, {axis: (indices, weights)})
        else:  # onnxruntime divides the weights along the last dimension, but the products along the others
            divisor = along_axis(jnp.asarray(total[:, 0], result.dtype), axis, x.ndim)
            terms = [
                _quotient(_weighted_sum(result, {axis: (index[:, None], weight[:, None])}), divisor)
                for index, weight in zip(indices.T, weights.T, strict=True)
            ]
            result = functools.reduce(_sum, terms)
    return result.astype(x.dtype)


def _four_neighbours(dimension, interpolation):
    """For each position, the four pixels around it and their weights, of shape (count, 4)."""
    first = np.floor(dimension.positions)
    weights = cubic_weights(dimension.positions - first, np.float32(interpolation.cubic_coeff_a), np)
    indices = first.astype(np.int64)[:, None] + np.arange(-1, 3)
    inside = np.clip(indices, 0, dimension.size - 1)
    return inside, np.where(indices == inside, weights, 0) if interpolation.exclude_outside else weights


def _antialiased(x, resized, interpolation):
    """One dimension after another, the last one first. After each, the result is rounded to integers if the image is."""
    for axis in sorted(resized, reverse=True):
        if len(resized[axis].positions) == x.shape[axis]:
            continue
        indices, weights = _stretched_kernel(resized[axis], interpolation)
        if x.dtype in (jnp.int8, jnp.uint8):
            fixed = weights.astype(np.float64) * (1 << _ANTIALIASED_FRACTION_BITS)
            weights = (np.sign(fixed) * np.floor(np.abs(fixed) + 0.5)).astype(np.int32)
            total = _stored_sum(x.astype(jnp.int32), axis, indices, weights)
            total = total + (1 << _ANTIALIASED_FRACTION_BITS - 1)
            x = jnp.clip(total >> _ANTIALIASED_FRACTION_BITS, 0, 255).astype(x.dtype)  # even for int8
        else:
            result = _stored_sum(_as_float(x), axis, indices, weights)
            x = result if result.dtype == x.dtype else rounding.round_half_away(result).astype(x.dtype)
    return x


def _stored_sum(x, axis, indices, weights):
    """The weighted sum along an axis, in memory: XLA:CPU would repeat it in whatever rounds it, or sums it once more.

    The programs of kernels that reach many pixels would take minutes to compile.
    """
    return materialize.stored(_weighted_sum(x, {axis: (indices, weights)}))


def _stretched_kernel(dimension, interpolation):
    """For each position, the pixels that the kernel reaches and their weights, of shape (count, neighbours).

    The kernel is stretched where the image shrinks. Pixels outside of the image count as its outermost pixel, unless they
    are excluded.
    """
    half, size = np.float32(0.5), dimension.size
    inverse = np.float32(1) / dimension.scale
    support = _KERNEL_RADIUS[interpolation.mode] * max(inverse, np.float32(1))
    shrinkage = np.float32(1) / inverse if inverse >= 1 else np.float32(1)
    centre = half + dimension.positions
    first, end = (np.floor(each).astype(np.int64) for each in (centre - support + half, centre + support + half))
    first_inside, end_inside = (np.clip(each, 0, size) for each in (first, end))
    if interpolation.exclude_outside:
        first, end = first_inside, end_inside
    indices = first[:, None] + np.arange(max(1, int((end - first).max())))
    distances = (indices.astype(np.float32) - centre[:, None] + half) * shrinkage
    cubic = functools.partial(_cubic_kernel, a=np.float32(interpolation.cubic_coeff_a))
    kernel = _triangle_kernel if interpolation.mode == "linear" else cubic
    weights = np.where(indices < end[:, None], kernel(distances), np.float32(0))
    total = functools.reduce(np.add, weights.T)
    is_reached = (indices < end[:, None]) & (first_inside < end_inside)[:, None]
    inside = np.clip(indices, 0, size - 1)
    inside_weights = np.where(is_reached & (indices == inside), weights, 0)
    for column in range(indices.shape[1]):  # adds the weights of pixels outside to that of the outermost pixel
        row = np.flatnonzero(is_reached[:, column] & (indices[:, column] != inside[:, column]))
        inside_weights[row, inside[row, column] - first[row]] += weights[row, column]
    return inside, inside_weights * np.where(total == 0, np.float32(1), 1 / total)[:, None]


def _triangle_kernel(t):
    return np.maximum(0, 1 - np.abs(t))


def _cubic_kernel(t, a):
    t = np.abs(t)
    near, far = ((a + 2) * t - (a + 3)) * t * t + 1, (((t - 5) * t + 8) * t - 4) * a
    return np.where(t < 1, near, np.where(t < 2, far, 0))


INTERPOLATIONS = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}  # by the mode


def _as_float(x):
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


def _product(a, b):
    return exact.product(a, b) if a.dtype == jnp.float32 else a * b


def _sum(a, b):
    return exact.sum(a, b) if a.dtype == jnp.float32 else a + b


def _quotient(a, b):
    return exact.quotient(a, b) if a.dtype == jnp.float32 else a / b
