"""The product of quantized matrices, of which one may be prepacked."""

import functools

import jax

from jquant.arithmetic.broadcasting import to_rank
from jquant.kernels import zero_point as zero_points
from jquant.kernels.epilogue import Epilogue, as_column, as_row
from jquant.kernels.float_rows import FloatRows
from jquant.kernels.integer_dot import integer_dot
from jquant.kernels.zero_point import ZeroPoints
from jquant.modes import Implementation
from jquant.packed.matrix import PackedMatrix


def matmul(
    a: jax.Array | FloatRows,
    b: jax.Array | PackedMatrix,
    a_zero_point: jax.Array | None,
    b_zero_point: jax.Array | None,
    epilogue: Epilogue = (),
    *,
    implementation: Implementation | None = None,
) -> jax.Array:
    """``epilogue((a - a_zero_point) @ (b - b_zero_point))``, the product in int32.

    Args:
      a: int8 or uint8, of shape (..., M, K), or floats that become int8.
      b: int8 or uint8, of shape (..., K, N), or packed. Ranks align as in NumPy.
      a_zero_point: of the dtype of `a`, one element or M of them, or None.
      b_zero_point: of the dtype of `b`, one element or N of them, or None; packed weights use their own.
      epilogue: the steps that follow, whose arrays have the larger rank of the two.
      implementation: as for `integer_dot`.
    """
    rank = max(len(a.shape), b.ndim)
    a, b = jax.tree.map(functools.partial(to_rank, rank=rank), (a, b))
    a_zero_point = None if a_zero_point is None else as_column(a_zero_point, rank)
    if isinstance(b, PackedMatrix):
        b_zero_point = zero_points.shifted(None, b.dtype, rank) if b.zero_point is None else b.zero_point
        b, block_sums, is_packed = b.data, b.block_sums, True
    else:
        b_zero_point = None if b_zero_point is None else as_row(b_zero_point, rank)
        block_sums, is_packed = None, False
    points = ZeroPoints(a_zero_point, b_zero_point, block_sums)
    return integer_dot(a, b, epilogue, zero_points=points, transpose_b=is_packed, implementation=implementation)
