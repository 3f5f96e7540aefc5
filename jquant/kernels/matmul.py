"""The product of quantized matrices: signs, zero points and sums around `integer_dot`."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jquant.arithmetic import signs
from jquant.arithmetic.broadcasting import to_rank
from jquant.kernels import epilogue as epilogues
from jquant.kernels import zero_point as zero_points
from jquant.kernels.epilogue import Epilogue, as_column, as_row
from jquant.kernels.integer_dot import integer_dot
from jquant.lowering.partitioned import unless_partitioned
from jquant.modes import Implementation
from jquant.packed.matrix import PackedMatrix

# Up to this many rows of A, the column sums of B are computed as one more row of the product: the time goes into reading B.
_FEW_ROWS = 16


def matmul(
    a: jax.Array,
    b: jax.Array | PackedMatrix,
    a_zero_point: jax.Array | None,
    b_zero_point: jax.Array | None,
    epilogue: Epilogue = (),
    *,
    implementation: Implementation | None = None,
) -> jax.Array:
    """``epilogue((a - a_zero_point) @ (b - b_zero_point))``, the product in int32.

    Args:
      a: int8 or uint8, of shape (..., M, K).
      b: int8 or uint8, of shape (..., K, N), or packed. Ranks align as in NumPy.
      a_zero_point: of the dtype of `a`, one element or M of them, or None.
      b_zero_point: of the dtype of `b`, one element or N of them, or None; packed weights use their own.
      epilogue: the steps that follow, whose arrays have the larger rank of the two.
      implementation: as for `integer_dot`.
    """
    k, rank = a.shape[-1], max(a.ndim, b.ndim)
    a, b = jax.tree.map(functools.partial(to_rank, rank=rank), (a, b))
    if isinstance(b, PackedMatrix):
        data, transpose_b, column_sum = b.data, True, b.column_sum()
        b_zero_point = b.zero_point
    else:
        data, transpose_b, column_sum = b, False, None
        b_zero_point = None if b_zero_point is None else as_row(b_zero_point, rank)
    a_zero_point = None if a_zero_point is None else as_column(a_zero_point, rank)
    a_zero_point = zero_points.shifted(a_zero_point, a.dtype, rank)
    b_zero_point = zero_points.shifted(b_zero_point, b.dtype, rank)
    b = data
    row_sum = None if b_zero_point is None else zero_points.row_sum(signs.to_int8(a))
    product = functools.partial(integer_dot, transpose_b=transpose_b, implementation=implementation)

    if a_zero_point is not None and column_sum is None:
        if _are_few_rows(a, b):
            functions = _product_and_sums_at_once, _product_and_sums_separately
            at_once, separately = (functools.partial(function, product) for function in functions)
            a_b, column_sum = unless_partitioned(at_once, separately, signs.to_int8(a), signs.to_int8(b))
            correction = zero_points.correction(a_zero_point, b_zero_point, row_sum, column_sum, k)
            return epilogues.apply((correction, *epilogue), a_b)
        column_sum = zero_points.column_sum(signs.to_int8(b))
    correction = zero_points.correction(a_zero_point, b_zero_point, row_sum, column_sum, k)
    return product(a, b, (correction, *epilogue))


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
    """The same in two steps, for rows that are split over devices: no row can be added to them without moving them."""
    a_b, column_sum = product(a, b), zero_points.column_sum(b)
    return a_b, jnp.broadcast_to(column_sum, (*a_b.shape[:-2], *column_sum.shape[-2:]))
