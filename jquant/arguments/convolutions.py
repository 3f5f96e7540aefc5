"""The arguments of a convolution other than its tensors: layout, groups and windows."""

import dataclasses
import re
import sys
from collections.abc import Sequence

from jax import lax

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.descriptor import Shaped, Signature, Tensor
from jquant.arguments.naming import message
from jquant.arguments.statics import are_integers, integer, is_sequence
from jquant.arguments.windows import Padding, windows
from jquant.errors import DescriptorError, DescriptorTypeError, shown
from jquant.formulas.convolution_geometry import Geometry

# As `jax.lax` takes them: three strings, or the numbers themselves.
DimensionNumbers = lax.ConvDimensionNumbers | tuple[str, str, str] | None


_CHANNELS_LAST = '; for channels-last data, pass dimension_numbers=("NHWC", "HWIO", "NHWC")'


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
    """The geometry that a caller describes in the form of `jax.lax`, or an error."""
    rank = len(input.shape)
    _require_ranks(operator, input.shape, filter.shape)
    is_layout = dimension_numbers is None or isinstance(dimension_numbers, lax.ConvDimensionNumbers)
    if not is_layout and not (is_sequence(dimension_numbers) and all(isinstance(spec, str) for spec in dimension_numbers)):
        text = f"is {shown(dimension_numbers)}; it must be three strings, or None"
        raise DescriptorTypeError(message(operator, "dimension_numbers", text))
    try:
        dimensions = lax.conv_dimension_numbers(input.shape, filter.shape, dimension_numbers)
    except (TypeError, ValueError, IndexError) as error:
        text = f"is {shown(dimension_numbers)}: {error}"
        raise DescriptorError(message(operator, "dimension_numbers", text)) from error
    if dimension_numbers is not None and not all(_is_an_order(spec, rank) for spec in dimensions):
        text = f"is {shown(dimension_numbers)}; each part must be the numbers from 0 to {rank - 1}"
        raise DescriptorError(message(operator, "dimension_numbers", text))
    batch, channels, *spatial = _ordered(input, dimensions.lhs_spec)
    filters, _, *sizes = _ordered(filter, dimensions.rhs_spec)
    groups = integer(operator, "groups", groups, range(1, sys.maxsize), "a positive integer")
    hint = _CHANNELS_LAST if dimension_numbers is None and rank == 4 else ""
    _require_channels(operator, input.shape, filter.shape, dimensions, groups, hint)
    most = max((size for size in (channels, filters) if isinstance(size, int)), default=1)  # others are symbolic
    over = windows(operator, spatial, sizes, strides, dilations, padding, others=(batch, most), source="FilterTensor")
    return Geometry(dimensions, groups, over)


@once_for_each_signature
def _require_ranks(operator: str, input: tuple[int, ...], filter: tuple[int, ...]) -> None:
    text = f"has shape {input}, filter has {filter}: the dimension counts must be the same, and at least 3"
    require(len(input) == len(filter) >= 3, message(operator, "InputTensor", text, "FilterTensor"))


@once_for_each_signature
def _require_channels(
    operator: str,
    input: tuple[int, ...],
    filter: tuple[int, ...],
    dimensions: lax.ConvDimensionNumbers,
    groups: int,
    hint: str,
) -> None:
    """Asserts that the filters fit the channels of the input, and the groups."""
    channels = input[dimensions.lhs_spec[1]]
    filters, depth = (filter[dimension] for dimension in dimensions.rhs_spec[:2])
    text = f"has shape {filter}; it must have at least one filter"
    require(filters > 0, message(operator, "FilterTensor", text))
    has = f"the input has {channels} channels (dimension {dimensions.lhs_spec[1]})"
    text = f"is {groups}: {has}, but the {filters} filters expect {depth} x groups{hint}"
    require(channels == groups * depth, message(operator, "groups", text))
    text = f"is {groups}; it must divide the number of filters, which is {filters}"
    require(filters % groups == 0, message(operator, "groups", text))


def _is_an_order(numbers: object, rank: int) -> bool:
    """Whether these are the dimensions of a tensor, each once: `ConvDimensionNumbers` may hold anything."""
    return are_integers(numbers) and sorted(numbers) == list(range(rank))


def _ordered(tensor: Shaped, order: Sequence[int]) -> tuple[int, ...]:
    return tuple(tensor.shape[dimension] for dimension in order)


def signatures(geometry: Geometry, input: Shaped, filter: Shaped) -> tuple[Signature, Signature, tuple[int, ...]]:
    """The input, the filter, and the shape of the output, with their dimensions in the order of the specifications."""
    sizes, filter_sizes = _ordered(input, geometry.dimensions.lhs_spec), _ordered(filter, geometry.dimensions.rhs_spec)
    output_sizes = sizes[0], filter_sizes[0], *geometry.windows.counts(sizes[2:])
    return Signature(sizes, input.dtype), Signature(filter_sizes, filter.dtype), output_sizes


def with_depth(rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A table with one more spatial dimension, and a one-dimensional bias; jquant's own."""

    def deeper(row: Tensor) -> Tensor:
        (low, high), sizes = row.ranks or (0, 0), row.sizes or ""
        if row.name == "BiasTensor":
            low, sizes = 1, re.sub(r"(?<!\S)1(?!\S)", "[1]", sizes)
        main = re.sub(r"\[(\w+)Height\]", r"[\1Depth] [\1Height]", sizes)
        return dataclasses.replace(row, ranks=(low, high + 1), sizes=f"{sizes} [1]" if main == sizes else main)

    return tuple(map(deeper, rows))
