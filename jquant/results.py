"""What operators with several outputs return.

The results of an operator that a specification defines have its names: `output`, `output_min`. Where jquant defines the
operator, its elements are `values`.
"""

from typing import NamedTuple

import jax
from jax import export


class QuantizeOutput(NamedTuple):
    """Integers, and the range that they cover."""

    output: jax.Array
    output_min: jax.Array
    output_max: jax.Array


class RangeOutput(NamedTuple):
    """A range for the integers of another operator to cover."""

    output_min: jax.Array
    output_max: jax.Array


class DynamicQuantizeOutput(NamedTuple):
    """The outputs of `dynamic_quantize_linear`: the integers, and their scale and zero point."""

    output: jax.Array
    scale: jax.Array
    zero_point: jax.Array


class MxQuantizeOutput(NamedTuple):
    """The outputs of `mx_quantize`: the elements, and the power-of-two scale of each block."""

    values: jax.Array
    scale: jax.Array


class Nvfp4QuantizeOutput(NamedTuple):
    """The outputs of `nvfp4_quantize`: the elements, the scale of each block, and that of the tensor."""

    values: jax.Array
    scale: jax.Array
    tensor_scale: jax.Array


for _result in (QuantizeOutput, RangeOutput, DynamicQuantizeOutput, MxQuantizeOutput, Nvfp4QuantizeOutput):
    export.register_namedtuple_serialization(_result, serialized_name=f"jquant.{_result.__name__}")
