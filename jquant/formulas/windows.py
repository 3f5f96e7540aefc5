"""Windows that slide over the spatial dimensions of a tensor, for convolutions and pooling."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# How many slices of a tensor are taken at once. Compile time grows with their number, or faster. A longer window is composed
# of shorter ones.
_MOST_SLICES = 8


class Windows(NamedTuple):
    """The windows' sizes, strides, dilations and padding, each with an entry for each spatial dimension.

    Attributes:
      sizes: the number of elements of a window.
      strides: the steps from one window to the next.
      dilations: the steps from one element of a window to the next.
      padding: the elements added before the first and after the last of the tensor.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    def counts(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """How many windows fit into a tensor of shape `spatial`, in each dimension."""
        return tuple(
            (size + low + high - (window - 1) * dilation - 1) // stride + 1
            for size, window, stride, dilation, (low, high) in zip(spatial, *self, strict=True)
        )

    def elements(self, padded: jax.Array, first: int) -> Iterator[jax.Array]:
        """For each element of a window, in row-major order, its values in all windows.

        Args:
          padded: a tensor including its padding.
          first: the index of its first spatial dimension.
        """
        axes = self._by_axis(padded, first)
        for element in itertools.product(*map(range, self.sizes)):
            start, limit, step = [0] * padded.ndim, list(padded.shape), [1] * padded.ndim
            for windows, index in zip(axes, element, strict=True):
                start[windows.axis], step[windows.axis] = index * windows.dilation, windows.stride
                limit[windows.axis] = start[windows.axis] + windows.extent
            yield _slice(padded, start, limit, step)

    def element(self, padded: jax.Array, first: int, number: jax.Array | np.integer) -> jax.Array:
        """Element `number` of `elements`; arbitrary values beyond the last one."""
        start, sizes, step = [jnp.int32(0)] * padded.ndim, list(padded.shape), [1] * padded.ndim
        for windows in reversed(self._by_axis(padded, first)):
            start[windows.axis] = number % windows.size * windows.dilation
            sizes[windows.axis], step[windows.axis] = windows.extent, windows.stride
            number = number // windows.size
        return lax.slice(lax.dynamic_slice(padded, start, sizes), [0] * padded.ndim, sizes, step)

    def patches(self, padded: jax.Array, first: int, channels: int) -> jax.Array:
        """The `elements` of each window, one after another along the dimension `channels` (im2col).

        Computed for one spatial dimension after another, which takes as many slices as the sum of the window's sizes, not
        their product.
        """
        for windows in reversed(self._by_axis(padded, first)):
            padded = _patches(padded, windows, channels)
        return padded

    def sums(self, padded: jax.Array, first: int) -> jax.Array:
        """The sum of the `elements` of each window, over one spatial dimension after another."""
        for windows in self._by_axis(padded, first):
            padded = _sums(padded, windows)
        return padded

    def _by_axis(self, padded: jax.Array, first: int) -> "list[_AxisWindows]":
        """The windows along each spatial dimension of a padded tensor."""
        unpadded = self._replace(padding=((0, 0),) * len(self.sizes))
        counts = unpadded.counts(padded.shape[first : first + len(self.sizes)])
        dimensions = zip(self.sizes, self.strides, self.dilations, counts, strict=True)
        return [
            _AxisWindows(axis=axis, size=size, stride=stride, dilation=dilation, number=number)
            for axis, (size, stride, dilation, number) in enumerate(dimensions, start=first)
        ]


class _AxisWindows(NamedTuple):
    """The windows along one axis of a tensor.

    Attributes:
      axis: the dimension of the tensor.
      size: the number of elements of a window.
      stride: the step from one window to the next.
      dilation: the step from one element of a window to the next.
      number: how many windows there are.
    """

    axis: int
    size: int
    stride: int
    dilation: int
    number: int

    @property
    def extent(self) -> int:
        """The number of elements from the beginning of the first window to that of the last one, both included."""
        return (self.number - 1) * self.stride + 1

    def slice(self, x: jax.Array, index: int) -> jax.Array:
        """The element `index` of each window."""
        start, limit, step = [0] * x.ndim, list(x.shape), [1] * x.ndim
        start[self.axis], step[self.axis] = index * self.dilation, self.stride
        limit[self.axis] = start[self.axis] + self.extent
        return _slice(x, start, limit, step)


def _slice(x: jax.Array, start: Sequence[int], limit: Sequence[int], step: Sequence[int]) -> jax.Array:
    """`lax.slice`, or `x` itself if the slice is all of it."""
    is_all = tuple(limit) == x.shape and not any(start) and set(step) <= {1}
    return x if is_all else lax.slice(x, start, limit, step)


def _patches(x: jax.Array, windows: _AxisWindows, channels: int) -> jax.Array:
    """The elements of the windows along one axis, one after another along `channels`."""
    size, stride = windows.size, windows.stride
    depth = x.shape[channels]
    spec = jax.typeof(x).sharding.spec
    can_reshape = isinstance(x.shape[windows.axis], int) and spec[windows.axis] is None and spec[channels] is None
    if windows.dilation == 1 and stride > 1 and size > 1 and can_reshape:
        # In blocks as long as a stride, windows have stride 1; if windows do not overlap, nothing is left to do.
        blocks = -(-size // stride)
        x = _in_blocks(x, windows.axis, channels, stride, windows.number + blocks - 1)
        windows, superfluous = windows._replace(size=blocks, stride=1), (blocks * stride - size) * depth
    else:
        superfluous = 0
    return _concatenated(x, windows, channels, superfluous)


def _in_blocks(x: jax.Array, axis: int, channels: int, size: int, count: int) -> jax.Array:
    """`x` with `count` blocks of `size` elements along `axis`; along `channels` are the elements of a block, with theirs."""
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = 0, count * size - x.shape[axis], 0  # beyond the last window
    x = lax.pad(x, np.zeros((), x.dtype)[()], edges)
    x = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    x = jnp.moveaxis(x, axis + 1, channels)  # before the channels
    return x.reshape(*x.shape[:channels], size * x.shape[channels + 1], *x.shape[channels + 2 :])


def _concatenated(x: jax.Array, windows: _AxisWindows, channels: int, superfluous: int = 0) -> jax.Array:
    """The elements of each window, concatenated along `channels`, without the last `superfluous` ones."""
    depth, part = x.shape[channels], -(-windows.size // _MOST_SLICES)
    if part > 1:
        number = x.shape[windows.axis] - (part - 1) * windows.dilation
        x = _concatenated(x, windows._replace(size=part, stride=1, number=number), channels)
    parts = [windows.slice(x, index) for index in range(0, windows.size - part + 1, part)]
    rest = windows.size % part
    if rest:
        last = windows.slice(x, windows.size - part)
        parts.append(lax.slice_in_dim(last, (part - rest) * depth, part * depth, axis=channels))
    if superfluous:
        parts[-1] = lax.slice_in_dim(parts[-1], 0, parts[-1].shape[channels] - superfluous, axis=channels)
    return lax.concatenate(parts, channels) if len(parts) > 1 else parts[0]


def _sums(x: jax.Array, windows: _AxisWindows) -> jax.Array:
    """The sums over the windows along one axis."""
    if windows.size <= _MOST_SLICES:
        return functools.reduce(lax.add, (windows.slice(x, index) for index in range(windows.size)))
    # Sums of 1, 2, 4, ... neighbours; the result is the sum of those whose lengths add up to the size.
    parts, start, width = [], 0, 1
    while True:
        if windows.size & width:
            parts.append(windows.slice(x, start))
            start += width
        if start == windows.size:
            return functools.reduce(lax.add, parts)
        step = width * windows.dilation
        pairs = windows._replace(size=2, stride=1, dilation=step, number=x.shape[windows.axis] - step)
        x = pairs.slice(x, 0) + pairs.slice(x, 1)
        width *= 2
