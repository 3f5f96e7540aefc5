"""Sampling images at positions between their pixels: GridSample and AffineGrid."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np

from jquant.onnx.graphs.values import sizes
from jquant.onnx.running.registry import converter

_CUBIC_A = -0.75  # the coefficient of Keys' cubic convolution


def cubic_weights(distance, a, xp):
    """The weights of the four neighbours of a point that lies `distance`, from 0 to 1, after the second of them.

    Args:
      a: the coefficient of Keys' cubic convolution.
      xp: NumPy or `jax.numpy`.
    """
    near = [((a + 2) * t - (a + 3)) * t * t + 1 for t in (distance, 1 - distance)]
    far = [((a * t - 5 * a) * t + 8 * a) * t - 4 * a for t in (distance + 1, 2 - distance)]
    return xp.stack([far[0], *near, far[1]], -1)


def sample(x, positions, mode, padding, *, align_corners=False, largest=False):
    """The values of an image at `positions`.

    Args:
      x: (batch, channels, *spatial).
      positions: for each spatial dimension, floating-point indices (batch, *shape).
      mode: "nearest" (ties to even), "linear" or "cubic".
      padding: what lies outside of the image: "zeros", "border" (the nearest pixel) or "reflection".
      align_corners: whether to reflect at the centres of the outermost pixels instead of their edges.
      largest: whether to return the largest of the weighted neighbours instead of their sum.

    Returns:
      (batch, channels, *shape).
    """
    if mode == "nearest":
        positions = [jnp.round(each) for each in positions]
    edges = [(0, size - 1) if align_corners else (-0.5, size - 0.5) for size in x.shape[2:]]
    if padding != "zeros" and mode != "cubic":  # in cubic mode, only the neighbours are moved, as in PyTorch, onnxruntime
        positions = [
            _inside(each, size, edge, padding) for each, size, edge in zip(positions, x.shape[2:], edges, strict=True)
        ]
    neighbours = [_neighbours(each, mode) for each in positions]
    flat = x.reshape(*x.shape[:2], -1)
    terms = []
    for corner in itertools.product(*neighbours):
        flat_index, weight = 0, 1
        for (index, factor), size, edge in zip(corner, x.shape[2:], edges, strict=True):
            if padding == "zeros":
                factor = jnp.where((index >= 0) & (index < size), factor, 0)
            else:
                index = _inside(index, size, edge, padding)
            flat_index = flat_index * size + jnp.clip(index, 0, size - 1).astype(jnp.int32)
            weight = weight * factor
        flat_index, weight = jnp.asarray(flat_index), jnp.asarray(weight, x.dtype)
        pixels = jnp.take_along_axis(flat, flat_index.reshape(flat_index.shape[0], 1, -1), 2, mode="clip")
        terms.append(pixels.reshape(*pixels.shape[:2], *flat_index.shape[1:]) * weight[:, None])
    return functools.reduce(jnp.maximum if largest else jnp.add, terms)


def _inside(position, size, edge, padding):
    """Moves positions outside of the image back inside: to the border, or by reflection."""
    low, high = edge
    if padding == "border":
        return jnp.where((position < low) | (position > high), jnp.clip(position, 0, size - 1), position)
    if low == high:
        return jnp.zeros_like(position)
    period = 2 * (high - low)
    beyond = jnp.abs(position - low) % period
    return jnp.where((position < low) | (position > high), low + jnp.minimum(beyond, period - beyond), position)


def _neighbours(position, mode):
    """The neighbours of a position along one dimension, as pairs (index, weight)."""
    if mode == "nearest":
        return [(position, jnp.ones_like(position))]
    first = jnp.floor(position)
    distance = position - first
    if mode == "linear":
        return [(first, 1 - distance), (first + 1, distance)]
    weights = cubic_weights(distance, _CUBIC_A, jnp)
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
        normalized = grid[..., -1 - i]
        positions.append((normalized + 1) / 2 * (size - 1) if align_corners else ((normalized + 1) * size - 1) / 2)
    return sample(x, positions, mode, padding, align_corners=bool(align_corners))


@converter("AffineGrid", since=20, static=("size",))
def affine_grid(theta, size, *, align_corners):
    """The positions for `GridSample` that affine maps, (batch, rank, rank + 1), give for the pixels of an image."""
    shape = sizes(size)[2:]
    steps = []
    for count in shape:
        indices = np.arange(count, dtype=np.float64)
        steps.append(indices * 2 / max(1, count - 1) - 1 if align_corners else (indices * 2 + 1) / count - 1)
    mesh = np.meshgrid(*steps, indexing="ij")
    points = np.stack([*mesh[::-1], np.ones(shape)], -1).reshape(-1, len(shape) + 1)
    grid = jnp.einsum("pi,nri->npr", jnp.asarray(points, theta.dtype), theta)
    return grid.reshape(theta.shape[0], *shape, len(shape))
