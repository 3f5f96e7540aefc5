"""The averages of integers, quantized again: what the pooling operators have in common."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact
from jquant.formulas import affine
from jquant.formulas.windows import Windows
from jquant.pytrees import Quantized, ScaleZeroPoint


def differences(x: Quantized) -> jax.Array:
    """``x - zero_point`` in int32."""
    values = x.values.astype(jnp.int32)
    return values if x.zero_point is None else values - x.zero_point.astype(jnp.int32)


def sums(x: jax.Array, w: Windows) -> jax.Array:
    """The sum over each window, of an array of shape (N, C, ...): over one dimension after the other."""
    edges = [(0, 0, 0)] * 2 + [(low, high, 0) for low, high in w.padding]
    x = lax.pad(x, jnp.zeros((), x.dtype), edges)
    for index, (size, stride, dilation) in enumerate(zip(w.sizes, w.strides, w.dilations, strict=True)):
        along = Windows((size,), (stride,), (dilation,), ((0, 0),))
        x = functools.reduce(lax.add, along.elements(x, 2 + index))
    return x


def quantized_average(
    total: jax.Array, count: jax.Array, scale: jax.Array, output: ScaleZeroPoint, dtype: np.dtype
) -> jax.Array:
    """The average of `count` numbers whose integers have this `total`: ``total * scale / count``, quantized."""
    value = exact.product(total.astype(jnp.float32), exact.widen(scale))
    return affine.quantize(exact.quotient(value, count.astype(jnp.float32)), output, dtype)
