"""The averages of integers, quantized again, which the pooling operators share."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact
from jquant.formulas import affine
from jquant.formulas.windows import Windows
from jquant.quantized_tensor import ScaleZeroPoint


def sums(x: jax.Array, w: Windows) -> jax.Array:
    """The sum over each window of an array of shape (N, C, ...)."""
    edges = [(0, 0, 0)] * 2 + [(low, high, 0) for low, high in w.padding]
    return w.sums(lax.pad(x, jnp.zeros((), x.dtype), edges), 2)


def quantized_average(
    total: jax.Array, count: jax.Array, scale: jax.Array, output: ScaleZeroPoint, dtype: np.dtype
) -> jax.Array:
    """The average of `count` numbers whose integers have this `total`: ``total * scale / count``, quantized."""
    value = total.astype(jnp.float32) * exact.widen(scale)
    return affine.quantize(exact.quotient(value, count.astype(jnp.float32)), output, dtype)
