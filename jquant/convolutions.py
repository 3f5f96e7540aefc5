"""What a caller says of a convolution beside its tensors: layout, groups and windows."""

import dataclasses
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jquant.descriptor import Shaped, Signature, Tensor, require
from jquant.errors import DescriptorError
from jquant.windows import Padding, Windows, windows

# As `jax.lax` takes it: three strings, or the numbers themselves.
DimensionNumbers = lax.ConvDimensionNumbers | tuple[str, str, str] | None


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

    def signatures(self, input: Shaped, filter: Shaped) -> tuple[Signature, Signature, tuple[int, ...]]:
        """The input, the filter, and the sizes of the output, with their dimensions in the order of the documents."""
        sizes, filter_sizes = _ordered(input, self.dimensions.lhs_spec), _ordered(filter, self.dimensions.rhs_spec)
        output_sizes = sizes[0], filter_sizes[0], *self.windows.counts(sizes[2:])
        return Signature(sizes, input.dtype), Signature(filter_sizes, filter.dtype), output_sizes

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


def geometry(
    operator: str,
    input: Shaped,
    filter: Shaped,
    strides: Sequence[int] | None,
    padding: Padding,
    dilations: Sequence[int] | None,
    groups: int,
    dimension_numbers: DimensionNumbers,
) -> Geometry:
    """The geometry that a caller describes as `jax.lax` takes it, or an error."""
    rank, filter_rank = len(input.shape), len(filter.shape)
    require(
        rank == filter_rank >= 3,
        f"{operator}: InputTensor has sizes {input.shape}, FilterTensor has {filter.shape}: the dimension counts must be "
        "the same, and at least 3",
    )
    try:
        dimensions = lax.conv_dimension_numbers(input.shape, filter.shape, dimension_numbers)
    except (TypeError, ValueError) as error:
        raise DescriptorError(f"{operator}: dimension_numbers are {dimension_numbers}: {error}") from error
    _, channels, *spatial = _ordered(input, dimensions.lhs_spec)
    filters, depth, *sizes = _ordered(filter, dimensions.rhs_spec)
    require(
        groups > 0 and channels == groups * depth and filters % groups == 0,
        f"{operator}: groups is {groups}, for {channels} channels of the input, {depth} of each filter, and {filters} "
        "filters; it must divide the filters, and times the channels of a filter be those of the input. The layout is "
        f"{dimension_numbers or 'that of the document, NCHW and OIHW: dimension_numbers says another'}",
    )
    return Geometry(dimensions, groups, windows(operator, spatial, sizes, strides, dilations, padding))


def _ordered(tensor: Shaped, order: Sequence[int]) -> tuple[int, ...]:
    return tuple(tensor.shape[dimension] for dimension in order)


def with_depth(rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A document's table with one spatial dimension more, which is jquant's own."""

    def deeper(row: Tensor) -> Tensor:
        (low, high), sizes = row.ranks or (0, 0), row.sizes or ""
        main = re.sub(r"\[(\w+)Height\]", r"[\1Depth] [\1Height]", sizes)
        return dataclasses.replace(row, ranks=(low, high + 1), sizes=f"{sizes} [1]" if main == sizes else main)

    return tuple(map(deeper, rows))
