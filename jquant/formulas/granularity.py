"""How finely a tensor is quantized: one scale for all of it, one for each slice along an axis, or one for each block.

A zero point has the choices of a scale.
"""

from typing import NamedTuple

import jax

from jquant.arithmetic import e8m0, exact
from jquant.formulas import blocks
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


class Granularity(NamedTuple):
    """Per tensor, per axis or per block: the axis, and the elements that share a scale.

    Attributes:
      axis: the dimension along which scales differ; None if their shapes already say so.
      block_size: how many elements along `axis` share a scale; None for one.
    """

    axis: int | None
    block_size: int | None

    def expand(self, x: Quantized) -> Quantized:
        """`x`, its scale and its zero point, which are aligned with it, in shapes that broadcast to that of its values."""
        parameters = ScaleZeroPoint(x.scale, x.zero_point)
        return Quantized(x.values, *self._repeated(parameters, x.values.shape))

    def expand_output(self, output: ScaleZeroPoint, shape: tuple[int, ...]) -> ScaleZeroPoint:
        """The same for the quantization of a tensor of that shape; the scale in float32 unless it is a power of two."""
        # Widened before it is expanded, so that XLA:GPU divides and corrects the quotient in one kernel.
        scale = output.scale if output.scale.dtype == e8m0.DTYPE else exact.widen(output.scale)
        return self._repeated(output._replace(scale=scale), shape)

    def _repeated(self, parameters: ScaleZeroPoint, shape: tuple[int, ...]) -> ScaleZeroPoint:
        """The values of blocks, repeated for each element of a block."""
        axis, block_size = self
        if axis is None or block_size is None:
            return parameters

        def of_each(x: jax.Array) -> jax.Array:
            return x if x.ndim == 0 else blocks.repeat(x, axis, block_size, shape[axis])

        return jax.tree.map(of_each, parameters)
