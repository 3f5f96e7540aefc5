"""The operands of a convolution, and the order of their dimensions."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.formulas.windows import Windows
from jquant.lowering.symbolic_sizes import joined


class DimensionOrder(NamedTuple):
    """The order of the dimensions.

    Attributes:
      channels_last: whether the image has its channels last, and not second.
      result_last: whether the result has its channels last; it may have them second where the image has them last.
      filter_spec: the positions of the filters, of their channels and of their elements in memory.
    """

    channels_last: bool
    result_last: bool
    filter_spec: Sequence[int]

    @property
    def filters_last(self) -> bool:
        """Whether the filters are the last dimension in memory."""
        return self.filter_spec[0] == len(self.filter_spec) - 1

    @property
    def by_channel(self) -> bool:
        """Whether filters have all elements of a channel together in memory; otherwise, all channels of an element."""
        return self.filter_spec[1] < min(self.filter_spec[2:])


class Operands(NamedTuple):
    """The operands of a convolution, in the form that the implementations take.

    Patches and products have their channels where the input has them, so that no array of their size is transposed: in the
    matrix products, the windows are the columns, or with `channels_last` the rows.

    Attributes:
      image: of shape (batch, groups, channels, ...), or (batch, ..., groups, channels) with `channels_last`.
      matrix: the filters, of shape (1, groups, filters, channels, ...).
    """

    image: jax.Array
    matrix: jax.Array
    input_zero_point: jax.Array | None
    filter_zero_point: jax.Array | None
    windows: Windows
    layout: DimensionOrder

    @property
    def channels(self) -> int:
        """The dimension of the channels; in a product, that of the filters."""
        return self.image.ndim - 1 if self.layout.channels_last else 2

    @property
    def first_spatial(self) -> int:
        """The first spatial dimension of the image."""
        return 1 if self.layout.channels_last else 3

    def padded(self, image: jax.Array, value: jax.Array | np.number) -> jax.Array:
        """`image`, with the padding of the windows filled with `value`."""
        if not any(map(any, self.windows.padding)):
            return image
        padding = [(0, 0, 0)] * image.ndim
        for dimension, (low, high) in enumerate(self.windows.padding, start=self.first_spatial):
            padding[dimension] = low, high, 0
        return lax.pad(image, value, padding)

    def matrices(self, x: jax.Array) -> jax.Array:
        """`x` with its spatial dimensions merged: (batch, groups, channels, space) or (batch, groups, space, channels)."""
        if self.layout.channels_last:
            return jnp.swapaxes(x.reshape(x.shape[0], joined(x.shape[1:-2]), *x.shape[-2:]), 1, 2)
        return x.reshape(*x.shape[:3], joined(x.shape[3:]))

    def by_filter(self, x: jax.Array, rank: int) -> jax.Array:
        """`x`, of one element or one per filter, in a shape that broadcasts to a product of `rank` dimensions."""
        _, groups, filters, *_ = self.matrix.shape if x.size > 1 else (1, 1, 1)
        ones = (1,) * (rank - 3)
        return x.reshape((1, *ones, groups, filters) if self.layout.channels_last else (1, groups, filters, *ones))


def rows(matrix: jax.Array, by_channel: bool) -> jax.Array:
    """Each filter as a row, which has all elements of a channel together, or all channels of an element."""
    return (matrix if by_channel else jnp.moveaxis(matrix, 3, -1)).reshape(*matrix.shape[:3], math.prod(matrix.shape[3:]))


def columns(matrix: jax.Array) -> jax.Array:
    """Each filter as a column, which has all channels of an element together."""
    _, groups, filters, *elements = matrix.shape
    # XLA removes a transposition that undoes another one, but not across a reshape, not even by dimensions of size 1.
    squeezed = jnp.squeeze(matrix, (0, 1)) if groups == 1 else matrix
    first = squeezed.ndim - matrix.ndim + 2
    columns = jnp.moveaxis(squeezed, (first + 1, first), (-2, -1))
    columns = columns.reshape(*columns.shape[:first], math.prod(elements), filters)
    return lax.expand_dims(columns, (0, 1)) if groups == 1 else columns
