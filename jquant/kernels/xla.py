"""The integer product in terms of XLA's own: right on every platform, and the reference of the kernels."""

import jax
import jax.numpy as jnp
from jax import lax

from jquant.kernels import epilogue as epilogues
from jquant.kernels.epilogue import Epilogue


def integer_dot(a: jax.Array, b: jax.Array, epilogue: Epilogue, *, transpose_b: bool = False) -> jax.Array:
    """``epilogue(a @ b)``, the product in int32.

    Args:
      a: int8, of shape (..., M, K).
      b: int8, of shape (..., K, N), or (..., N, K) with `transpose_b`. Batch sizes of 1 broadcast.
      epilogue: the steps that follow, whose arrays have the rank of `a`.
      transpose_b: whether `b` is K-major, as packed weights are.
    """
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    dimensions, k = tuple(range(len(batch))), a.ndim - 1
    contraction = ((k,), (k if transpose_b else k - 1,))
    product = lax.dot_general(a, b, (contraction, (dimensions, dimensions)), preferred_element_type=jnp.int32)
    return epilogues.apply(epilogue, product)
