"""Zero points of integer products, corrected for by row and column sums.

int8 x int8 -> int32 is the one integer product that every platform has a fast unit for. Unsigned operands become signed by
flipping their sign bit, which subtracts 128 from them and from their zero point; the zero points are then corrected for by
row and column sums of the operands. All of this is exact modulo 2**32.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.kernels import xla
from jquant.kernels.epilogue import ZeroPointCorrection
from jquant.lowering.partitioned import unless_partitioned


def shifted(zero_point: jax.Array | None, dtype: np.dtype, rank: int) -> jax.Array | None:
    """The zero point of ``signs.to_int8(x)``, for `x` of `dtype`: int32, of rank `rank`; None stands for 0."""
    if dtype == jnp.int8:
        return None if zero_point is None else zero_point.astype(jnp.int32)
    return jnp.full((1,) * rank, -128, jnp.int32) if zero_point is None else zero_point.astype(jnp.int32) - 128


def correction(
    a_zero_point: jax.Array | None, b_zero_point: jax.Array | None, row_sum, column_sum, k: int
) -> ZeroPointCorrection:
    """The step from ``A @ B`` to ``(A - a_zero_point) @ (B - b_zero_point)``.

    It subtracts ``a_zero_point * column_sum`` and ``(row_sum - k * a_zero_point) * b_zero_point``. A per-tensor zero point
    is multiplied with the sum in advance, which leaves no multiplication per element of the output.

    Args:
      a_zero_point: int32, of shape (..., 1, 1) or (..., M, 1), or None for 0.
      b_zero_point: int32, of shape (..., 1, 1) or (..., 1, N), or None for 0.
      row_sum: of A, int32, of shape (..., M, 1); not used if `b_zero_point` is None.
      column_sum: of B, int32, of shape (..., 1, N); not used if `a_zero_point` is None.
      k: the number of terms in each sum.
    """
    terms = []
    if a_zero_point is not None:
        per_tensor = a_zero_point.shape[-2] == 1
        terms.append((a_zero_point * column_sum,) if per_tensor else (a_zero_point, column_sum))
    if b_zero_point is not None:
        row = row_sum if a_zero_point is None else row_sum - k * a_zero_point
        per_tensor = b_zero_point.shape[-1] == 1
        terms.append((row * b_zero_point,) if per_tensor else (row, b_zero_point))
    return ZeroPointCorrection(tuple(terms))


def row_sum(a: jax.Array) -> jax.Array:
    """The sums along K of an int8 array of shape (..., M, K), in int32, of shape (..., M, 1)."""
    (sums,) = unless_partitioned(_row_sum, _row_sum, a, on_cpu=_row_sum_by_product)
    return sums


def column_sum(b: jax.Array) -> jax.Array:
    """The sums along K of an int8 array of shape (..., K, N), in int32, of shape (..., 1, N)."""
    (sums,) = unless_partitioned(_column_sum, _column_sum, b, on_cpu=_column_sum_by_product)
    return sums


def _row_sum(a: jax.Array) -> tuple[jax.Array]:
    return (jnp.sum(a, -1, dtype=jnp.int32, keepdims=True),)


def _column_sum(b: jax.Array) -> tuple[jax.Array]:
    return (jnp.sum(b, -2, dtype=jnp.int32, keepdims=True),)


# On a CPU, a product with a few columns of ones is several times as fast as a reduction; four columns are faster than one.
# If a mesh splits K, all four would be summed over the devices.
_ONES = 4
_MANY_ROWS = 64


def _row_sum_by_product(a: jax.Array) -> tuple[jax.Array]:
    # A batch of matrices stays a batch: for the rows of all as one matrix, XLA would compute `a` again in that shape.
    *batch, m, k = a.shape
    is_batch = all(isinstance(size, int) for size in (*batch, m)) and m >= _MANY_ROWS
    ones = jnp.ones((*(batch if is_batch else (1,) * len(batch)), _ONES, k), jnp.int8)
    return (xla.integer_dot_on_cpu(a, ones, transpose_b=True)[..., :1],)


def _column_sum_by_product(b: jax.Array) -> tuple[jax.Array]:
    ones = jnp.ones((*(1,) * (b.ndim - 2), _ONES, b.shape[-2]), jnp.int8)
    return (xla.integer_dot_on_cpu(ones, b)[..., :1, :],)
