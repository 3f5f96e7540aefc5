"""TensorFlow's mode MIN_FIRST, in which the lower end of a range is rounded to a multiple of its step."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact, rounding
from jquant.formulas import ranges


def quantize(x: jax.Array, low: jax.Array, high: jax.Array, dtype: np.dtype) -> jax.Array:
    """``clamp(away(x * scale) - (away(low * scale) - min(T)))`` with ``scale = (2**bits - 1) / (high - low)``, as a float.

    `x` may be an unsealed sum or difference. The caller saturates the result.
    """
    limits = jnp.iinfo(dtype)
    scale = jnp.where(high == low, jnp.float32(0), ranges.steps_per_unit(low, high, dtype))
    offset = exact.difference(rounding.round_half_away(exact.product(low, scale)), jnp.float32(limits.min))
    value = rounding.round_half_away(exact.product(x, scale)) - offset
    # The largest 32-bit integer is not a float32: TensorFlow saturates at the one below it.
    return ranges.minimum(value, jnp.float32(2147483520)) if limits.bits == 32 else value


def dequantize(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """``(rounded_low - min(T) * scale) + x * scale`` with ``scale = (high - low) / (2**bits - 1)``, unsealed."""
    scale = ranges.step(low, high, x.dtype)
    origin = exact.difference(rounded_low(low, high, scale), exact.product(jnp.float32(jnp.iinfo(x.dtype).min), scale))
    return origin + exact.product(x.astype(jnp.float32), scale)


def rounded_low(low: jax.Array, high: jax.Array, scale: jax.Array) -> jax.Array:
    """``away(low / scale) * scale``; `low` itself if the range is a single point."""
    empty = high == low
    steps = rounding.round_half_away(exact.quotient(low, jnp.where(empty, jnp.float32(1), scale)))
    return jnp.where(empty, low, exact.product(steps, scale))
