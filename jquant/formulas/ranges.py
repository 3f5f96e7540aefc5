"""Ranges of real numbers, [min, max], as in TensorFlow's operators: one per tensor, or one per slice along an axis."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact


def scales(low: jax.Array, high: jax.Array, smallest: jax.Array, largest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The factor from each bound to its integer; the largest float32 if that is not positive: no limit."""

    def scale(integer: jax.Array, bound: jax.Array) -> jax.Array:
        is_limited = exact.product(integer, bound) > 0
        divisor = jnp.where(is_limited, bound, jnp.float32(1))  # never 0, even where the quotient is not used
        return jnp.where(is_limited, exact.quotient(integer, divisor), jnp.float32(jnp.finfo(jnp.float32).max))

    return scale(smallest, low), scale(largest, high)


def step(low: jax.Array, high: jax.Array, dtype: np.dtype) -> jax.Array:
    """``(high - low) / (2**bits - 1)``"""
    limits = jnp.iinfo(dtype)
    # For 32 bits, the divisor as a float32, 2**32, gives the same float32.
    return exact.quotient(exact.difference(high, low), jnp.float32(limits.max - limits.min))


def steps_per_unit(low: jax.Array, high: jax.Array, dtype: np.dtype) -> jax.Array:
    """``(2**bits - 1) / (high - low)``"""
    bits, width = jnp.iinfo(dtype).bits, exact.difference(high, low)
    return exact.quotient_of_uint32_max(width) if bits == 32 else exact.quotient(jnp.float32(2.0**bits - 1), width)


def minimum(a: jax.Array, b: jax.Array) -> jax.Array:
    """C++'s `std::min`, which ignores a NaN in `b`."""
    return jnp.where(b < a, b, a)


def maximum(a: jax.Array, b: jax.Array) -> jax.Array:
    """C++'s `std::max`, which ignores a NaN in `b`."""
    return jnp.where(a < b, b, a)


def clamp(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """`x` clamped to the range; NaN stays NaN."""
    return maximum(minimum(x, high), low)


def magnitude(low: jax.Array, high: jax.Array) -> jax.Array:
    """The largest magnitude in a range."""
    return maximum(lax.abs(low), lax.abs(high))
