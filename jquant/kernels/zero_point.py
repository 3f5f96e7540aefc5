"""Signs and zero points of integer products.

int8 x int8 -> int32 is the one integer product that every platform has a fast unit for. Unsigned operands
become signed by flipping their sign bit, which subtracts 128 from them and from their zero point; zero
points are then folded into the product with row and column sums. All of it is exact modulo 2**32.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def to_int8(x: jax.Array) -> jax.Array:
    """`x` if it is int8, and ``x - 128`` if it is uint8."""
    return x if x.dtype == jnp.int8 else lax.bitcast_convert_type(x ^ np.uint8(0x80), jnp.int8)


def shifted(zero_point: jax.Array | None, dtype: np.dtype) -> jax.Array | None:
    """The int32 zero point that belongs to ``to_int8(x)`` of an `x` of `dtype`; None stands for 0."""
    if dtype == jnp.int8:
        return None if zero_point is None else zero_point.astype(jnp.int32)
    return jnp.int32(-128) if zero_point is None else zero_point.astype(jnp.int32) - 128


def fold(product: jax.Array, row_sum, column_sum, k: int, a_zero_point, b_zero_point) -> jax.Array:
    """``(A - az) @ (B - bz)`` from ``A @ B``: minus ``az * colsum(B)`` and ``(rowsum(A) - K * az) * bz``.

    Args:
      product: int32, shape (..., M, N).
      row_sum: int32, shape (..., M, 1); not read where `b_zero_point` is None.
      column_sum: int32, shape (..., 1, N); not read where `a_zero_point` is None.
      k: the number of terms in each sum.
      a_zero_point: int32, shape (), (..., 1, 1) or (..., M, 1), or None for 0.
      b_zero_point: int32, shape (), (..., 1, 1) or (..., 1, N), or None for 0.
    """
    if a_zero_point is not None:
        product = product - a_zero_point * column_sum
        row_sum = row_sum - k * a_zero_point if b_zero_point is not None else row_sum
    if b_zero_point is not None:
        product = product - row_sum * b_zero_point
    return product
