"""A quantized tensor, and what its integers stand for."""

from typing import Any, NamedTuple

import jax
from jax import export

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


export.register_namedtuple_serialization(ScaleZeroPoint, serialized_name="jquant.ScaleZeroPoint")
