"""Sampling images between their pixels."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np

from jquant.onnx.registry import converter
from jquant.onnx.values import sizes

_CUBIC = -0.75  # of Keys' cubic convolution


def cubic_weights(distance, a, xp):
    """The weights of the four neighbours of a point `distance`, from 0 to 1, behind the second of them."""
    near = [((a + 2) * t - (a + 3)) * t * t + 1 for t in (distance, 1 - distance)]
    far = [((a * t - 5 * a) * t + 8 * a) * t - 4 * a for t in (distance + 1, 2 - distance)]
    return xp.stack([far[0], *near, far[1]], -1)


def sample(x, positions, mode, padding, *, align_corners=False, largest=False):
    """The values of an image at `positions`.

    Args:
      x: (batch, channels, *spatial).
      positions: for each spatial dimension, floating-point indices (batch, *shape).
      mode: "nearest" (ties to even), "linear" or "cubic".
      padding: what lies outside: "zeros", "border" (the nearest pixel) or "reflection".
      align_corners: whether reflection is at the centres of the outermost pixels, or at their edges.
      largest: whether to return the largest of the weighted neighbours instead of their sum.

    Returns:
      (batch, channels, *shape).
    """
    if mode == "nearest":
        positions = [jnp.round(each) for each in positions]
    edges = [(0, size - 1) if align_corners else (-0.5, size - 0.5) for size in x.shape[2:]]
    if padding != "zeros" and mode != "cubic":  # for cubic, only the neighbours are moved, as in PyTorch and onnxruntime
        positions = [
            _inside(each, size, edge, padding) for each, size, edge in zip(positions, x.shape[2:], edges, strict=True)
        ]
    taps = [_taps(each, mode) for each in positions]
    flat = x.reshape(*x.shape[:2], -1)
    terms = []
    for chosen in itertools.product(*taps):
        index, weight = 0, 1
        for (place, factor), size, edge in zip(chosen, x.shape[2:], edges, strict=True):
            if padding == "zeros":
                factor = jnp.where((place >= 0) & (place < size), factor, 0)
            else:
                place = _inside(place, size, edge, padding)
            index = index * size + jnp.clip(place, 0, size - 1).astype(jnp.int32)
            weight = weight * factor
        index, weight = jnp.asarray(index), jnp.asarray(weight, x.dtype)
        found = jnp.take_along_axis(flat, index.reshape(index.shape[0], 1, -1), 2, mode="clip")
        terms.append(found.reshape(*found.shape[:2], *index.shape[1:]) * weight[:, None])
    return functools.reduce(jnp.maximum if largest else jnp.add, terms)


def _inside(position, size, edge, padding):
    """A position outside is moved back inside: to the border, or by reflection."""
    low, high = edge
    if padding == "border":
        return jnp.where((position < low) | (position > high), jnp.clip(position, 0, size - 1), position)
    if low == high:
        return jnp.zeros_like(position)
    period = 2 * (high - low)
    beyond = jnp.abs(position - low) % period
    return jnp.where((position < low) | (position > high), low + jnp.minimum(beyond, period - beyond), position)


def _taps(position, mode):
    """The neighbours of a position along one dimension, each with its weight: (index, weight)."""
    if mode == "nearest":
        return [(position, jnp.ones_like(position))]
    first = jnp.floor(position)
    distance = position - first
    if mode == "linear":
        return [(first, 1 - distance), (first + 1, distance)]
    weights = cubic_weights(distance, _CUBIC, jnp)
    return [(first + i - 1, weights[..., i]) for i in range(4)]


@converter("GridSample", since=16, until=19)
def sample_grid_to_19(x, grid, *, align_corners, mode, padding_mode):
    return _sample_grid(x, grid, align_corners, {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode), padding_mode)


@converter("GridSample", since=20)
def sample_grid(x, grid, *, align_corners, mode, padding_mode):
    return _sample_grid(x, grid, align_corners, mode, padding_mode)


def _sample_grid(x, grid, align_corners, mode, padding):
    """A grid holds positions from -1 to 1, the last dimension first."""
    positions = []
    for i, size in enumerate(x.shape[2:]):
        place = grid[..., -1 - i]
        positions.append((place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2)
    return sample(x, positions, mode, padding, align_corners=bool(align_corners))


@converter("AffineGrid", since=20, static=("size",))
def affine_grid(theta, size, *, align_corners):
    """The positions for `GridSample` that an affine map, (batch, rank, rank + 1), gives for an image."""
    shape = sizes(size)[2:]
    steps = []
    for count in shape:
        places = np.arange(count, dtype=np.float64)
        steps.append(places * 2 / max(1, count - 1) - 1 if align_corners else (places * 2 + 1) / count - 1)
    mesh = np.meshgrid(*steps, indexing="ij")
    points = np.stack([*mesh[::-1], np.ones(shape)], -1).reshape(-1, len(shape) + 1)
    grid = jnp.einsum("pi,nri->npr", jnp.asarray(points, theta.dtype), theta)
    return grid.reshape(theta.shape[0], *shape, len(shape))
