"""Zero points of integer products, corrected for by row and column sums.

int8 x int8 -> int32 is the one integer product that every platform has a fast unit for. Unsigned operands become signed by
flipping their sign bit, which subtracts 128 from them and from their zero point; the zero points are then corrected for by
row and column sums of the operands. All of this is exact modulo 2**32.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import signs
from jquant.kernels import epilogue as epilogues
from jquant.kernels import xla
from jquant.kernels.epilogue import Epilogue, ZeroPointCorrection
from jquant.kernels.float_rows import FloatRows
from jquant.lowering.partitioned import unless_partitioned

# Up to this many rows of A, the column sums of B are computed as one more row of the product: the time goes into reading B.
_FEW_ROWS = 16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ZeroPoints:
    """The zero points of the factors of a product, and the column sums of B if they are known.

    Attributes:
      a: int32 or of the dtype of A, of shape (..., M, 1) or (..., 1, 1), or None for 0.
      b: int32 or of the dtype of B, of shape (..., 1, N) or (..., 1, 1), or None for 0. Where B is int8 and this is uint8,
        B holds unsigned integers less 128, as packed weights do.
      block_sums: int32, of shape (..., G, N), whose sums over G are the column sums of B; or None.
    """

    a: jax.Array | None = None
    b: jax.Array | None = None
    block_sums: jax.Array | None = None

    def prepared(self, b_dtype: np.dtype) -> "ZeroPoints":
        """All in int32, for a B of `b_dtype`."""
        a, b = (None if x is None else x.astype(jnp.int32) for x in (self.a, self.b))
        if self.b is not None and (self.b.dtype, b_dtype) == (jnp.uint8, jnp.int8):
            b = shifted(self.b, jnp.dtype(jnp.uint8), self.b.ndim)
        return ZeroPoints(a, b, self.block_sums)


NO_ZERO_POINTS = ZeroPoints()


def multiply(
    product: Callable[..., jax.Array],
    a: jax.Array | FloatRows,
    b: jax.Array,
    zero_points: ZeroPoints,
    epilogue: Epilogue = (),
    *,
    transpose_b: bool = False,
) -> jax.Array:
    """``epilogue((a - zero_points.a) @ (b - zero_points.b))`` of int8 and uint8 by a `product` of int8 and its epilogue.

    `a` may be floats if `product` takes them; where the zero points of B need the row sums of A, they are quantized here.
    """
    k, rank = a.shape[-1], b.ndim
    if isinstance(a, FloatRows):
        if zero_points.b is None and b.dtype == jnp.int8:
            return product(a, b, epilogue, transpose_b=transpose_b)
        a = a.quantized()
    a_zero_point, b_zero_point = shifted(zero_points.a, a.dtype, rank), shifted(zero_points.b, b.dtype, rank)
    block_sums = zero_points.block_sums
    b_is_unsigned = b.dtype == jnp.uint8
    a, b = signs.to_int8(a), signs.to_int8(b)
    product = functools.partial(product, transpose_b=transpose_b)
    row_sums = None if b_zero_point is None else row_sum(a)
    column_sums = None if block_sums is None else jnp.sum(block_sums, -2, dtype=jnp.int32, keepdims=True)
    if column_sums is not None and b_is_unsigned:
        column_sums = column_sums - 128 * k
    if a_zero_point is not None and column_sums is None:
        if not transpose_b and _are_few_rows(a, b):
            functions = _product_and_sums_at_once, _product_and_sums_separately
            at_once, separately = (functools.partial(function, product) for function in functions)
            a_b, column_sums = unless_partitioned(at_once, separately, a, b)
            steps = correction(a_zero_point, b_zero_point, row_sums, column_sums, k), *epilogue
            return epilogues.apply(steps, a_b)
        column_sums = column_sum(jnp.swapaxes(b, -1, -2) if transpose_b else b)
    return product(a, b, (correction(a_zero_point, b_zero_point, row_sums, column_sums, k), *epilogue))


def _are_few_rows(a: jax.Array, b: jax.Array) -> bool:
    m = a.shape[-2] if math.prod(b.shape[:-2]) != 1 else math.prod(a.shape[:-1])
    return m in range(1, _FEW_ROWS + 1)


def _product_and_sums_at_once(product: Callable, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``a @ b`` and the column sums of `b`, which is read only once, unless `jax.vmap` has made the rows many."""
    if not _are_few_rows(a, b):
        return _product_and_sums_separately(product, a, b)
    both = product(lax.concatenate([a, lax.full_like(a[..., :1, :], 1)], a.ndim - 2), b)
    return both[..., :-1, :], both[..., -1:, :]


def _product_and_sums_separately(product: Callable, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The product, then the sums, for rows split over devices: none can be added to them without moving them."""
    a_b, column_sums = product(a, b), column_sum(b)
    return a_b, jnp.broadcast_to(column_sums, (*a_b.shape[:-2], *column_sums.shape[-2:]))


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
