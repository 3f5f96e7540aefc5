"""Result types of operators with several outputs.

The results of an operator that a specification defines have the specification's names, such as `output` and `output_min`.
Where jquant defines the operator, the quantized elements are called `values`.
"""

from typing import NamedTuple

import jax
from jax import export


class QuantizeOutput(NamedTuple):
    """Integers, and the range that they represent."""

    output: jax.Array
    output_min: jax.Array
    output_max: jax.Array


class RangeOutput(NamedTuple):
    """A range, for the outputs of another operator."""

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


for _type in (QuantizeOutput, RangeOutput, DynamicQuantizeOutput, MxQuantizeOutput, Nvfp4QuantizeOutput):
    export.register_namedtuple_serialization(_type, serialized_name=f"jquant.{_type.__name__}")
