"""The geometry of a convolution: the layouts of its operands, its groups and its windows."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jquant.formulas.windows import Windows


class Geometry(NamedTuple):
    """Everything about a convolution except its arrays: static, and hashable.

    Attributes:
      dimensions: the positions of the specifications' dimensions (batch, channels, height, width) in the input and in the
        output, and of (filters, channels, height, width) in the filter.
      groups: the number of convolutions side by side, each on an equal part of the channels.
      windows: those of the filter over the input.
    """

    dimensions: lax.ConvDimensionNumbers
    groups: int
    windows: Windows

    @property
    def channels_last(self) -> bool:
        """Whether the channels of the input are its last dimension."""
        return self.dimensions.lhs_spec[1] == len(self.dimensions.lhs_spec) - 1

    def output_shape(self, input_shape: Sequence[int], filter_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the output, in its own layout."""
        batch, _, *space = (input_shape[dimension] for dimension in self.dimensions.lhs_spec)
        sizes = batch, filter_shape[self.dimensions.rhs_spec[0]], *self.windows.counts(space)
        by_dimension = dict(zip(self.dimensions.out_spec, sizes, strict=True))
        return tuple(by_dimension[dimension] for dimension in range(len(sizes)))

    def arranged(self, input: jax.Array, *, channels_last: bool) -> jax.Array:
        """The input with the batch first, and the channels second or last."""
        return jnp.transpose(input, _arrangement(self.dimensions.lhs_spec, channels_last))

    def restored(self, output: jax.Array, *, channels_last: bool) -> jax.Array:
        """An output with its dimensions arranged like the input's, in the layout of the output."""
        order = _arrangement(self.dimensions.out_spec, channels_last)
        return jnp.transpose(output, [order.index(dimension) for dimension in range(output.ndim)])


def _arrangement(order: Sequence[int], channels_last: bool) -> tuple[int, ...]:
    batch, channels, *spatial = order
    return (batch, *spatial, channels) if channels_last else tuple(order)
