"""The integer product in terms of XLA's own: right on every platform, and the reference of the kernels."""

import jax
import jax.numpy as jnp
from jax import lax

from jquant.kernels import zero_point


def matmul_integer(a: jax.Array, b: jax.Array, a_zero_point: jax.Array | None, b_zero_point: jax.Array | None) -> jax.Array:
    """``(a - a_zero_point) @ (b - b_zero_point)`` in int32.

    Args:
      a: int8 or uint8, shape (..., M, K).
      b: int8 or uint8, shape (..., K, N).
      a_zero_point: of the dtype of `a`, shape (..., 1, 1) or (..., M, 1), or None.
      b_zero_point: of the dtype of `b`, shape (..., 1, 1) or (..., 1, N), or None.
    """
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a_shifted, b_shifted = zero_point.shifted(a_zero_point, a.dtype), zero_point.shifted(b_zero_point, b.dtype)
    a, b = (jnp.broadcast_to(zero_point.to_int8(x), (*batch, *x.shape[-2:])) for x in (a, b))
    k = a.shape[-1]
    # The sums run on the integer unit too: a few columns of ones are cheaper than a reduction.
    ones = jnp.ones((*batch, k, 4), jnp.int8)
    row_sum = None if b_shifted is None else _dot(a, ones)[..., :1]
    column_sum = None if a_shifted is None else _dot(jnp.swapaxes(ones, -1, -2), b)[..., :1, :]
    return zero_point.fold(_dot(a, b), row_sum, column_sum, k, a_shifted, b_shifted)


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    batch = tuple(range(a.ndim - 2))
    return lax.dot_general(a, b, (((a.ndim - 1,), (a.ndim - 2,)), (batch, batch)), preferred_element_type=jnp.int32)
