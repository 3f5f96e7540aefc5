"""The noise of quantization: its power, and its ratio to the signal in decibels."""

import math
from typing import Any

import jax
import jax.numpy as jnp


def powers(exact: jax.Array, noisy: jax.Array) -> tuple[Any, Any] | None:
    """The power of a float output, and that of its noise; None for an output of another type."""
    if not jnp.issubdtype(exact.dtype, jnp.floating):
        return None
    exact, noisy = exact.astype(jnp.float32), noisy.astype(jnp.float32)
    return jnp.sum(exact * exact), jnp.sum(jnp.square(exact - noisy))


def decibels(signal: float, noise: float) -> float:
    """The signal-to-noise ratio: infinite if there is no noise."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf
