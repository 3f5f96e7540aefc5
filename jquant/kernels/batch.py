"""The batch of a product: which part of it a kernel can do without."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp


def join_rows(
    a: jax.Array, b: jax.Array, leaves: Sequence[jax.Array], batch: Sequence[int]
) -> tuple[jax.Array, jax.Array, list[jax.Array]] | None:
    """Operands whose batch is joined to the rows of A, which all multiply one B: each of them with a batch of (1,).

    None if there is more than one B, or if an array of the epilogue has different columns for each batch.

    Args:
      a: shape (..., M, K).
      b: shape (..., K, N) or (..., N, K).
      leaves: the epilogue's arrays, with the rank of `a`.
      batch: the batch of the product.
    """
    m = a.shape[-2]

    def is_for_all(x: jax.Array) -> bool:
        return math.prod(x.shape[:-1]) == 1

    def joined(x: jax.Array) -> jax.Array:
        if not is_for_all(x):
            x = jnp.broadcast_to(x, (*batch, m, x.shape[-1]))
        return x.reshape(1, -1, x.shape[-1])

    if math.prod(b.shape[:-2]) != 1 or not all(is_for_all(x) or x.shape[-1] == 1 or x.shape[-2] > 1 for x in leaves):
        return None
    a = a.reshape(1, -1, a.shape[-1])
    return a, b.reshape(1, *b.shape[-2:]), [joined(x) for x in leaves]
