"""Windows that slide over the spatial dimensions of a tensor: of convolutions and pooling."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Windows(NamedTuple):
    """Each field has an entry for each spatial dimension.

    Attributes:
      sizes: the elements of a window.
      strides: the steps from a window to the next.
      dilations: the steps from an element of a window to the next.
      padding: the elements before the first and after the last of the tensor.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    def counts(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """How many windows fit into a tensor of these `spatial` sizes, in each dimension."""
        return tuple(
            (size + low + high - (window - 1) * dilation - 1) // stride + 1
            for size, window, stride, dilation, (low, high) in zip(spatial, *self, strict=True)
        )

    def elements(self, padded: jax.Array, first: int) -> Iterator[jax.Array]:
        """For each element of a window, in row-major order, its values in all windows.

        Args:
          padded: a tensor that has its padding.
          first: the first of its spatial dimensions.
        """
        unpadded = self._replace(padding=((0, 0),) * len(self.sizes))
        dimensions = range(first, first + len(self.sizes))
        counts = unpadded.counts([padded.shape[dimension] for dimension in dimensions])
        for element in itertools.product(*map(range, self.sizes)):
            start, limit, step = [0] * padded.ndim, list(padded.shape), [1] * padded.ndim
            for dimension, index, count, stride, dilation in zip(
                dimensions, element, counts, self.strides, self.dilations, strict=True
            ):
                start[dimension], step[dimension] = index * dilation, stride
                limit[dimension] = index * dilation + (count - 1) * stride + 1
            yield lax.slice(padded, start, limit, step)


class Geometry(NamedTuple):
    """Everything of a convolution but its values: static, and hashable.

    Attributes:
      dimensions: where the dimensions of the documents (batch, channels, height, width) are in the input, in the filter
        (filters, channels, height, width) and in the output.
      groups: the number of convolutions, of as many parts of the channels, that lie beside each other.
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
        """The input with its batch first, and its channels second or last; the filter with its dimensions in order."""
        order = _arrangement(self.dimensions.lhs_spec, channels_last)
        return jnp.transpose(input, order), jnp.transpose(filter, self.dimensions.rhs_spec)

    def restored(self, output: jax.Array, *, channels_last: bool) -> jax.Array:
        """An output, arranged as an input, in its own layout."""
        order = _arrangement(self.dimensions.out_spec, channels_last)
        return jnp.transpose(output, [order.index(dimension) for dimension in range(output.ndim)])


def _arrangement(order: Sequence[int], channels_last: bool) -> tuple[int, ...]:
    batch, channels, *spatial = order
    return (batch, *spatial, channels) if channels_last else tuple(order)
