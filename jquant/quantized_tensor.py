"""A quantized tensor, and its scale and zero point."""

from typing import Any, NamedTuple

import jax
from jax import export

from jquant.arithmetic.broadcasting import to_rank


class Quantized(NamedTuple):
    """A tensor of integers, or packed weights, which represent ``(values - zero_point) * scale``."""

    values: Any  # a jax.Array or a PackedMatrix
    scale: jax.Array
    zero_point: jax.Array | None

    def to_rank(self, rank: int) -> "Quantized":
        """The tensor, with dimensions of size 1 in front for a rank of `rank`."""
        return self._replace(values=to_rank(self.values, rank))


class ScaleZeroPoint(NamedTuple):
    """A scale and a zero point, the integer that represents 0, as `quantize_linear` and other operators take them."""

    scale: jax.Array
    zero_point: jax.Array | None  # None means 0; `scale_and_zero_point` always returns one


export.register_namedtuple_serialization(ScaleZeroPoint, serialized_name="jquant.ScaleZeroPoint")
