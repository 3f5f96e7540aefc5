"""Windows that slide over the spatial dimensions of a tensor, for convolutions and pooling."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# How many slices of a tensor are taken at once. Compile time grows with their number, or worse. A longer window is composed
# of shorter ones.
_MOST_SLICES = 8


class Windows(NamedTuple):
    """Each field has an entry for each spatial dimension.

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
        counts = self._counts_of(padded, first)
        for element in itertools.product(*map(range, self.sizes)):
            start, limit, step = [0] * padded.ndim, list(padded.shape), [1] * padded.ndim
            for dimension, index in enumerate(element):
                along = self._along(dimension, first, counts)
                start[along.axis], step[along.axis] = index * along.dilation, along.stride
                limit[along.axis] = start[along.axis] + along.reach
            yield _slice(padded, start, limit, step)

    def element(self, padded: jax.Array, first: int, number: jax.Array | np.integer) -> jax.Array:
        """The element with this index in `elements`; beyond the last one, any values."""
        counts = self._counts_of(padded, first)
        start, sizes, step = [jnp.int32(0)] * padded.ndim, list(padded.shape), [1] * padded.ndim
        for dimension in reversed(range(len(self.sizes))):
            along = self._along(dimension, first, counts)
            start[along.axis] = number % along.size * along.dilation
            sizes[along.axis], step[along.axis] = along.reach, along.stride
            number = number // along.size
        return lax.slice(lax.dynamic_slice(padded, start, sizes), [0] * padded.ndim, sizes, step)

    def patches(self, padded: jax.Array, first: int, channels: int) -> jax.Array:
        """The `elements` of each window, one after another along the dimension `channels`.

        One spatial dimension after another: this takes as many slices as the sum of the window's sizes, not their product.
        """
        counts = self._counts_of(padded, first)
        for dimension in reversed(range(len(self.sizes))):
            padded = _patches(padded, self._along(dimension, first, counts), channels)
        return padded

    def sums(self, padded: jax.Array, first: int) -> jax.Array:
        """The sum of the `elements` of each window, over one spatial dimension after another."""
        counts = self._counts_of(padded, first)
        for dimension in range(len(self.sizes)):
            padded = _sums(padded, self._along(dimension, first, counts))
        return padded

    def _counts_of(self, padded: jax.Array, first: int) -> tuple[int, ...]:
        unpadded = self._replace(padding=((0, 0),) * len(self.sizes))
        return unpadded.counts(padded.shape[first : first + len(self.sizes)])

    def _along(self, dimension: int, first: int, counts: Sequence[int]) -> "_Along":
        properties = (self.sizes, self.strides, self.dilations, counts)
        return _Along(first + dimension, *(values[dimension] for values in properties))


class _Along(NamedTuple):
    """Windows along one dimension, `axis`, of a tensor."""

    axis: int
    size: int
    stride: int
    dilation: int
    windows: int

    @property
    def reach(self) -> int:
        """The extent from the first window's beginning to the last one's."""
        return (self.windows - 1) * self.stride + 1

    def slice(self, x: jax.Array, index: int) -> jax.Array:
        """The element `index` of each window."""
        start, limit, step = [0] * x.ndim, list(x.shape), [1] * x.ndim
        start[self.axis], step[self.axis] = index * self.dilation, self.stride
        limit[self.axis] = start[self.axis] + self.reach
        return _slice(x, start, limit, step)


def _slice(x: jax.Array, start: Sequence[int], limit: Sequence[int], step: Sequence[int]) -> jax.Array:
    """`lax.slice`, unless it is all of `x`."""
    is_whole = tuple(limit) == x.shape and not any(start) and set(step) <= {1}
    return x if is_whole else lax.slice(x, start, limit, step)


def _patches(x: jax.Array, along: _Along, channels: int) -> jax.Array:
    size, stride = along.size, along.stride
    depth = x.shape[channels]
    axes = jax.typeof(x).sharding.spec
    is_whole = isinstance(x.shape[along.axis], int) and axes[along.axis] is None and axes[channels] is None
    if along.dilation == 1 and stride > 1 and size > 1 and is_whole:
        # Over blocks as long as a stride, windows are neighbours; if windows do not overlap, nothing is left to do.
        blocks = -(-size // stride)
        x = _in_blocks(x, along.axis, channels, stride, along.windows + blocks - 1)
        along, superfluous = along._replace(size=blocks, stride=1), (blocks * stride - size) * depth
    else:
        superfluous = 0
    return _neighbours(x, along, channels, superfluous)


def _in_blocks(x: jax.Array, axis: int, channels: int, size: int, count: int) -> jax.Array:
    """A tensor with `count` blocks along `axis`; along `channels`, it has the elements of each block and their channels."""
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = 0, count * size - x.shape[axis], 0  # beyond the last window
    x = lax.pad(x, np.zeros((), x.dtype)[()], edges)
    x = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    x = jnp.moveaxis(x, axis + 1, channels)  # before the channels
    return x.reshape(*x.shape[:channels], size * x.shape[channels + 1], *x.shape[channels + 2 :])


def _neighbours(x: jax.Array, along: _Along, channels: int, superfluous: int = 0) -> jax.Array:
    """The elements of each window along `channels`, without the last `superfluous` ones."""
    depth, part = x.shape[channels], -(-along.size // _MOST_SLICES)
    if part > 1:
        count = x.shape[along.axis] - (part - 1) * along.dilation
        x = _neighbours(x, along._replace(size=part, stride=1, windows=count), channels)
    parts = [along.slice(x, index) for index in range(0, along.size - part + 1, part)]
    rest = along.size % part
    if rest:
        last = along.slice(x, along.size - part)
        parts.append(lax.slice_in_dim(last, (part - rest) * depth, part * depth, axis=channels))
    if superfluous:
        parts[-1] = lax.slice_in_dim(parts[-1], 0, parts[-1].shape[channels] - superfluous, axis=channels)
    return lax.concatenate(parts, channels) if len(parts) > 1 else parts[0]


def _sums(x: jax.Array, along: _Along) -> jax.Array:
    if along.size <= _MOST_SLICES:
        return functools.reduce(lax.add, (along.slice(x, index) for index in range(along.size)))
    # Sums of 1, 2, 4, ... neighbours; the result is the sum of those whose lengths add up to the size.
    parts, start, width = [], 0, 1
    while True:
        if along.size & width:
            parts.append(along.slice(x, start))
            start += width
        if start == along.size:
            return functools.reduce(lax.add, parts)
        step = width * along.dilation
        pairs = along._replace(size=2, stride=1, dilation=step, windows=x.shape[along.axis] - step)
        x = pairs.slice(x, 0) + pairs.slice(x, 1)
        width *= 2


class Geometry(NamedTuple):
    """Everything about a convolution except its values: static, and hashable.

    Attributes:
      dimensions: the positions of the specifications' dimensions (batch, channels, height, width) in the input, in the
        filter (filters, channels, height, width) and in the output.
      groups: the number of convolutions side by side, each on an equal part of the channels.
      windows: of the filter, over the input.
    """

    dimensions: lax.ConvDimensionNumbers
    groups: int
    windows: Windows

    @property
    def channels_last(self) -> bool:
        """Whether the channels of the input are its last dimension."""
        return self.dimensions.lhs_spec[1] == len(self.dimensions.lhs_spec) - 1

    def arranged(self, input: jax.Array, filter: jax.Array, *, channels_last: bool) -> tuple[jax.Array, jax.Array]:
        """The input with the batch first, and the channels second or last; the filter with its dimensions in order."""
        order = _arrangement(self.dimensions.lhs_spec, channels_last)
        return jnp.transpose(input, order), jnp.transpose(filter, self.dimensions.rhs_spec)

    def restored(self, output: jax.Array, *, channels_last: bool) -> jax.Array:
        """An output, arranged like an input, in its own layout."""
        order = _arrangement(self.dimensions.out_spec, channels_last)
        return jnp.transpose(output, [order.index(dimension) for dimension in range(output.ndim)])


def _arrangement(order: Sequence[int], channels_last: bool) -> tuple[int, ...]:
    batch, channels, *spatial = order
    return (batch, *spatial, channels) if channels_last else tuple(order)
