"""Per-tensor, per-axis and per-block quantization."""

from typing import NamedTuple

import jax

from jquant.arithmetic import e8m0, exact
from jquant.formulas import blocks
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


class Granularity(NamedTuple):
    """Per-tensor, per-axis or per-block: the axis, and the elements per scale. It applies to zero points as well.

    Attributes:
      axis: the dimension along which scales differ; None if they already have shapes that broadcast.
      block_size: how many elements along `axis` share a scale; None for one.
    """

    axis: int | None
    block_size: int | None

    def expand(self, x: Quantized) -> Quantized:
        """`x`, with its scale and zero point, which have its rank, expanded to shapes that broadcast to its values."""
        parameters = ScaleZeroPoint(x.scale, x.zero_point)
        return Quantized(x.values, *self._repeated(parameters, x.values.shape))

    def expand_output(self, output: ScaleZeroPoint, shape: tuple[int, ...]) -> ScaleZeroPoint:
        """The quantization of a tensor of this shape, expanded like `expand`'s; the scale in float32 unless it is E8M0."""
        # Widened before it is expanded, so that XLA:GPU divides and corrects the quotient in one kernel.
        scale = output.scale if output.scale.dtype == e8m0.DTYPE else exact.widen(output.scale)
        return self._repeated(output._replace(scale=scale), shape)

    def _repeated(self, parameters: ScaleZeroPoint, shape: tuple[int, ...]) -> ScaleZeroPoint:
        """The parameters of each block, repeated for its elements."""
        axis, block_size = self
        if axis is None or block_size is None:
            return parameters

        def repeat(x: jax.Array) -> jax.Array:
            return x if x.ndim == 0 else blocks.repeat(x, axis, block_size, shape[axis])

        return jax.tree.map(repeat, parameters)
