"""Floats that a product quantizes to int8 itself, with a scale for each row."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from jquant.arithmetic import exact
from jquant.formulas import affine
from jquant.quantized_tensor import ScaleZeroPoint


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FloatRows:
    """``sat(rne(values / scale))`` in int8, as in `quantize_linear`.

    Attributes:
      values: float32, float16 or bfloat16, of shape (..., M, K).
      scale: float32, of shape (..., M, 1) or (..., 1, 1).
    """

    values: jax.Array
    scale: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def quantized(self) -> jax.Array:
        return affine.quantize(exact.numerator(self.values), ScaleZeroPoint(self.scale, None), np.dtype(np.int8))


def on_integers(product: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`product`, of which the left operand may be `FloatRows`, which are quantized first."""

    def function(a: jax.Array | FloatRows, *operands, **parameters) -> jax.Array:
        return product(a.quantized() if isinstance(a, FloatRows) else a, *operands, **parameters)

    return function
