"""The factors by which the channels of an input are multiplied, and the rows of the weights divided."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact
from jquant.transform.recipes.preparation import SmoothQuant

_EXPONENTS = np.arange(20, dtype=np.float32) / 20  # those that AWQ tries
_LIMIT = 2.0**14  # of factors and their reciprocals: what is multiplied by them still fits float16


def smooth_quant(options: SmoothQuant, matrix: jax.Array, largest: jax.Array) -> jax.Array:
    """The factors of SmoothQuant for a matrix (..., K, N): ``max|w|**(1 - strength) / max|x|**strength``.

    `largest` is ``max|x|``, of shape (K,). Where a channel is 0 in one of them, that counts as one of middle size: the
    factor changes the other one, which must not take the range of all channels.

    Xiao and others, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models".
    """
    weights = jnp.abs(matrix).max(-1).reshape(-1, matrix.shape[-2]).max(0)
    strength = np.float32(options.strength)
    return _limited(_without_zeros(weights) ** (1 - strength) / _without_zeros(largest) ** strength)


def _without_zeros(x: jax.Array) -> jax.Array:
    """Magnitudes, with the geometric mean of the smallest and the largest of the others in place of 0; 1 if all are 0."""
    is_used = x > 0
    extremes = jnp.where(is_used, x, jnp.inf).min(initial=jnp.inf), jnp.where(is_used, x, 0).max(initial=0)
    smallest, largest = (jnp.sqrt(jnp.where(is_used.any(), extreme, np.float32(1))) for extreme in extremes)
    return jnp.where(is_used, x, smallest * largest)


def awq(mean: jax.Array, error: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The factors of AWQ: ``mean|x|**-exponent``, over the geometric mean of the smallest and the largest of them.

    Of the exponents 0, 0.05, ..., 0.95, the one is taken for whose factors `error` is the smallest. `mean` is ``mean|x|``,
    of shape (K,). A channel that is 0 has the factor 1, which is in the middle.

    Lin and others, "AWQ: Activation-aware Weight Quantization for On-Device LLM Compression and Acceleration".
    """
    is_used = mean > 0
    safe = jnp.where(is_used, mean, np.float32(1))

    def factors(exponent: jax.Array) -> jax.Array:
        powers = safe**-exponent
        smallest = jnp.where(is_used, powers, jnp.inf).min()
        largest = jnp.where(is_used, powers, 0).max()
        return _limited(jnp.where(is_used, powers / jnp.sqrt(smallest * largest), np.float32(1)))

    exponents = jnp.asarray(_EXPONENTS)
    return factors(exponents[jnp.argmin(lax.map(lambda exponent: error(factors(exponent)), exponents))])


def _limited(factors: jax.Array) -> jax.Array:
    return jnp.clip(factors, 1 / _LIMIT, _LIMIT)


def smoothed(x: jax.Array, factors: jax.Array) -> jax.Array:
    """``x * factors`` along the last dimension, rounded once to float32 and once to the type of `x`."""
    return exact.narrow(exact.product(exact.widen(x), factors), x.dtype)


def divided(matrix: jax.Array, factors: jax.Array) -> jax.Array:
    """``matrix / factors`` along the rows of a matrix (..., K, N), in float32."""
    return exact.quotient(exact.widen(matrix), factors[:, None])
