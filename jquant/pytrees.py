"""Trees of arrays that pass between arguments and formulas: tensors that belong together, and results."""

from typing import Any, NamedTuple

import jax
from jax import export
from jax.typing import ArrayLike

from jquant.arithmetic.broadcasting import to_rank


class Quantized(NamedTuple):
    """A tensor of integers, or packed weights, and what they stand for: ``(values - zero_point) * scale``."""

    values: Any  # a jax.Array or a PackedMatrix
    scale: jax.Array
    zero_point: jax.Array | None

    def to_rank(self, rank: int) -> "Quantized":
        """With dimensions of size 1 in front, up to `rank` dimensions."""
        return self._replace(values=to_rank(self.values, rank))


class ScaleZeroPoint(NamedTuple):
    """What `quantize_linear` and the operators on quantized tensors take: the scale, and the integer for real 0."""

    scale: jax.Array
    zero_point: jax.Array | None  # of an output, where None stands for 0; `scale_and_zero_point` always has one


class ScaleBias(NamedTuple):
    """DML_SCALE_BIAS: what `clip` and `clip1` first do to their input, ``input * scale + bias``. Both are float32."""

    scale: ArrayLike
    bias: ArrayLike


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


_TREES = ScaleZeroPoint, ScaleBias, QuantizeOutput, RangeOutput, DynamicQuantizeOutput, MxQuantizeOutput, Nvfp4QuantizeOutput
for _tree in _TREES:
    export.register_namedtuple_serialization(_tree, serialized_name=f"jquant.{_tree.__name__}")
