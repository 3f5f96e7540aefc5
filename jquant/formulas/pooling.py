"""Window sums of integers, and quantized averages, for the pooling operators."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact
from jquant.formulas import affine
from jquant.formulas.windows import Windows
from jquant.quantized_tensor import ScaleZeroPoint


def sums(x: jax.Array, windows: Windows) -> jax.Array:
    """The sum over each window of an array of shape (N, C, ...)."""
    edges = [(0, 0, 0)] * 2 + [(low, high, 0) for low, high in windows.padding]
    return windows.sums(lax.pad(x, jnp.zeros((), x.dtype), edges), 2)


def quantized_average(
    total: jax.Array, count: jax.Array, scale: jax.Array, output: ScaleZeroPoint, dtype: np.dtype
) -> jax.Array:
    """The average of `count` numbers, ``total * scale / count``, quantized; `total` is the sum of their integers."""
    value = total.astype(jnp.float32) * exact.widen(scale)
    return affine.quantize(exact.quotient(value, count.astype(jnp.float32)), output, dtype)
