"""The formats of weights by the names of their types, and what each can be part of."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jquant.errors import shown
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix
from jquant.transform.formats import floats_as_integers
from jquant.transform.formats.float_formats import Float8, Microscaling, Nvfp4
from jquant.transform.formats.floats_as_integers import MicroscalingIntegers, Nvfp4Integers
from jquant.transform.formats.integer_formats import Blocks, Columns, TwoBits
from jquant.transform.formats.stored_weights import FilterFormat, WeightFormat

_FLOATS_OF_8_BITS = tuple(Float8.LARGEST)
INTEGER_PRODUCTS = "INT8", "UINT8", "INT4", "UINT4"
"""The types of integers that are multiplied by quantized inputs."""
FLOATS_IN_INTEGER_PRODUCTS = floats_as_integers.WEIGHT_TYPES
"""The types of floats that are."""
WITH_OWN_SCALES = *Microscaling.ELEMENTS, "NVFP4"
"""The types whose scales have a type of their own."""
WEIGHT_TYPES = *INTEGER_PRODUCTS, "INT2", *_FLOATS_OF_8_BITS, *WITH_OWN_SCALES


def create(
    weight_type: str,
    by_column: bool,
    block_size: int | None,
    scale_type: str,
    k_parts: int,
    *,
    is_multiplied_by_floats: bool,
) -> WeightFormat:
    """The format of a matrix."""
    if weight_type == "NVFP4":
        return Nvfp4() if is_multiplied_by_floats else Nvfp4Integers(k_parts)
    if weight_type in Microscaling.ELEMENTS:
        fields = weight_type, block_size or 32
        return Microscaling(*fields) if is_multiplied_by_floats else MicroscalingIntegers(*fields, k_parts)
    if weight_type in _FLOATS_OF_8_BITS:
        return Float8(weight_type, by_column, block_size, scale_type)
    if weight_type == "INT2":
        assert block_size is not None
        return TwoBits(block_size, scale_type)
    if weight_type.endswith("INT8") and block_size is None and not is_multiplied_by_floats:
        return Columns(weight_type, by_column, scale_type, k_parts)
    return Blocks(weight_type, by_column, block_size, scale_type, k_parts)


def create_for_filter(weight_type: str, by_channel: bool, scale_type: str) -> FilterFormat | None:
    """The format of a convolution's filter; None if convolutions do not take the type."""
    if weight_type in _FLOATS_OF_8_BITS:
        return Float8(weight_type, by_channel, None, scale_type)
    return Columns(weight_type, by_channel, scale_type) if weight_type == "INT8" else None


def as_stored(format: WeightFormat, stored: Mapping[str, Any]) -> WeightFormat:
    """The format of weights that take the place of those of `format`: a checkpoint's have types and blocks of their own.

    Minima, which only checkpoints have, become zero points.
    """
    if not isinstance(format, Blocks):
        return format
    values: PackedBlockMatrix = stored["values"]
    is_own = (values.dtype.name, values.block_size) == (format.weight_type.lower(), format.rows_of_a_block(values.shape[-2]))
    if is_own and values.minimum is None and format.scale_type.lower() == values.scale.dtype.name:
        return format
    name = values.dtype.name.removeprefix("u") if values.zero_point is None and values.minimum is None else values.dtype.name
    if values.zero_point is not None and not name.startswith("u"):
        name = f"u{name}"
    scale_type = values.scale.dtype.name.upper()
    return dataclasses.replace(
        format, weight_type=name.upper(), by_column=True, block_size=values.block_size, scale_type=scale_type
    )


def why_not_stored(format: WeightFormat, stored: Any, shape: Sequence[int], *, optional: str) -> str | None:
    """Why `stored` cannot be the weights of a matrix of this shape in a format; None if it can, or is not packed.

    It may have the array `optional` beside those of the format.
    """
    wanted = {Columns: PackedMatrix, Blocks: PackedBlockMatrix}.get(type(format))
    if wanted is None:
        return None
    fields, others = ({"values", "scale"}, {optional}) if wanted is PackedMatrix else ({"values"}, {"permutation", optional})
    if not isinstance(stored, Mapping) or not fields <= set(stored) <= fields | others:
        return f"they must be a dict with {' and '.join(sorted(fields))}"
    values = stored["values"]
    if not isinstance(values, wanted):
        return f"values is {shown(values)}; it must be a {wanted.__name__}"
    if values.shape != tuple(shape):
        return f"values is {values}, of shape {values.shape}; it must have shape {tuple(shape)}"
    return None
