"""The product with the matrix of all weights, converted to floats."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.kernels.weights import Weights, dequantized
from jquant.lowering.contraction import out_sharding


def matmul(a: jax.Array, weights: Weights, dtype: np.dtype) -> jax.Array:
    """``a @ weights``, of shape (..., M, N), with all weights in `dtype`."""
    return dot(a.astype(dtype), dequantized(weights, a.shape[-1]).astype(dtype))


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """``a @ b`` in float32."""
    options = {"precision": lax.Precision.HIGHEST, "preferred_element_type": jnp.float32}
    return jnp.matmul(a, b, out_sharding=out_sharding(a, b, -2, -1), **options)
