"""The affine maps between integers and real numbers, which operators and kernel epilogues share."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact
from jquant.pytrees import Quantized, ScaleZeroPoint


def dequantize(x: Quantized) -> jax.Array:
    """``(x - zero_point) * scale`` in float32: an exact difference, one rounding."""
    return exact.product(offset(x), exact.widen(x.scale))


def difference(x: Quantized) -> jax.Array:
    """``x - zero_point`` in int32, of integers of at most 16 bits."""
    values = x.values.astype(jnp.int32)
    return values if x.zero_point is None else values - x.zero_point.astype(jnp.int32)


def offset(x: Quantized) -> jax.Array:
    """``fl(x - zero_point)``: exact up to 16 bits."""
    return x.values.astype(jnp.float32) if x.zero_point is None else exact.integer_difference(x.values, x.zero_point)


def quantize(x: jax.Array, output: ScaleZeroPoint, dtype: np.dtype) -> jax.Array:
    """``sat(rne(x / scale) + zero_point)``, for an integer `dtype` of at most 16 bits; NaN becomes 0."""
    return exact.nearest_integer(exact.quotient(x, exact.widen(output.scale)), output.zero_point, dtype)
