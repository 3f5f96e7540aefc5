"""The affine maps between integers and real numbers, which operators and kernel epilogues share."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact
from jquant.pytrees import Quantized, ScaleZeroPoint


def dequantize(x: Quantized) -> jax.Array:
    """``(x - zero_point) * scale`` in float32: an exact difference, one rounding."""
    return exact.product(offset(x), exact.widen(x.scale))


def offset(x: Quantized) -> jax.Array:
    """``fl(x - zero_point)``: exact up to 16 bits."""
    return x.values.astype(jnp.float32) if x.zero_point is None else exact.integer_difference(x.values, x.zero_point)


def quantize(x: jax.Array, output: ScaleZeroPoint, dtype: np.dtype) -> jax.Array:
    """``sat(rne(x / scale) + zero_point)``, for an integer `dtype` of at most 16 bits; NaN becomes 0."""
    return to_integer(exact.quotient(x, exact.widen(output.scale)), output.zero_point, dtype)


def to_integer(x: jax.Array, zero_point: jax.Array | None, dtype: np.dtype) -> jax.Array:
    """``sat(rne(x) + zero_point)``, for an integer `dtype` of at most 16 bits; NaN becomes 0."""
    rounded = exact.round_half_even(x)
    # Exact below 2**23, and saturated above it whatever the zero point.
    shifted = rounded if zero_point is None else rounded + zero_point.astype(jnp.float32)
    return exact.saturating_cast(shifted, dtype)
