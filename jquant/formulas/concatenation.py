"""Quantized tensors that are quantized again, by one scale and one zero point, and joined."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic.broadcasting import broadcast_beside
from jquant.formulas import affine
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


def concatenate(tensors: Sequence[Quantized], output: ScaleZeroPoint, axis: int, dtype: np.dtype) -> jax.Array:
    """``concatenate([quantize(dequantize(x)) for x in tensors], axis)``.

    `axis` counts from the end; the other dimensions of the tensors, of one rank, broadcast.
    """
    parts = [affine.quantize(affine.dequantize(x), output, dtype) for x in tensors]
    return jnp.concatenate(broadcast_beside(axis, parts), axis)
