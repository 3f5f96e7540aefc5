"""The product of a few rows with a matrix of weights on a GPU: one kernel that reads the weights as they are stored.

XLA:GPU computes the terms of a sum in the kernel of the sum. But a product of matrices reads weights of few bits as floats
that another kernel has written to memory, 20 times the bytes of the weights themselves.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact, packed_int4, subbyte
from jquant.formulas import affine
from jquant.kernels.weight_only import dense
from jquant.kernels.weights import StoredWeights, Weights, as_one_matrix
from jquant.packed.block_matrix import Layout
from jquant.quantized_tensor import Quantized

_FEW_ROWS = 8  # with more, XLA computes the sums in several kernels


def matmul(a: jax.Array, weights: Weights, dtype: np.dtype) -> jax.Array:
    """`dense.matmul`; for a few rows of float32 by one matrix in whole blocks, without weights in memory as floats.

    Packed weights in the order (K, N) are read column by column: for a single row alone.
    """
    one_matrix = as_one_matrix(a, weights)
    if one_matrix is None or dtype != jnp.float32 or 0 in a.shape:
        return dense.matmul(a, weights, dtype)
    rows, matrix = one_matrix
    is_by_columns = isinstance(matrix, StoredWeights) or matrix.layout in (Layout.K_MAJOR_WORDS, Layout.K_MAJOR_BYTES)
    few = range(1, (_FEW_ROWS if is_by_columns else 1) + 1)
    if rows.shape[0] not in few or not _is_in_whole_blocks(matrix, rows.shape[1]):
        return dense.matmul(a, weights, dtype)
    result = _by_sums(rows, matrix)
    return result.reshape(*a.shape[:-1], result.shape[-1])


def _is_in_whole_blocks(weights: Weights, k: int) -> bool:
    if isinstance(weights, StoredWeights):
        n, blocks, _ = weights.data.shape
        return weights.group_size == weights.block_size and blocks * weights.block_size == k and n > 0
    return weights.padding == 0 and 0 not in weights.shape


def _by_sums(a: jax.Array, weights: Weights) -> jax.Array:
    """For each row, one sum over blocks and the elements of the data in a block, which hold one or several weights each."""
    by_place = _weights_by_place(weights)
    _, blocks, size = by_place[0].shape
    a = a.reshape(a.shape[0], blocks, size, len(by_place))

    def row(x: jax.Array) -> jax.Array:
        terms = (x[None, :, :, place] * part for place, part in enumerate(by_place))
        return jnp.sum(functools.reduce(operator.add, terms), (1, 2))

    return jnp.stack([row(x) for x in a])


def _weights_by_place(weights: Weights) -> list[jax.Array]:
    """The weights whose integers are the first in an element of the data, those that are the second, and so on.

    Each as float32, of shape (N, G, elements of a block).
    """
    if isinstance(weights, StoredWeights):
        zero_point = np.uint8(2 ** (weights.bits - 1)) if weights.zero_point is None else weights.zero_point[..., None]
        integers = subbyte.in_each_byte(weights.data, weights.bits)
        return [_real(x, weights.scale[..., None], zero_point, None) for x in integers]
    matrix = weights.k_major()
    scale, zero_point, minimum = jax.tree.map(lambda x: x.T[..., None], (matrix.scale, matrix.zero_point, matrix.minimum))
    data = matrix.data.reshape(*scale.shape[:2], -1)
    integers = packed_int4.signed_by_place(data) if matrix.layout == Layout.K_MAJOR_WORDS else [data]
    return [_real(x.astype(jnp.int16) - np.int16(matrix.offset), scale, zero_point, minimum) for x in integers]


def _real(integers: jax.Array, scale: jax.Array, zero_point, minimum: jax.Array | None) -> jax.Array:
    """``fl(fl(integers - zero_point) * scale)``, or ``fl(fl(integers * scale) + minimum)``.

    Only the product that is followed by a sum is sealed, with which it could be merged: a seal reads its value twice, and
    XLA would compute a value that is read twice in a kernel of its own.
    """
    scale = scale.astype(jnp.float32)
    if zero_point is not None and jnp.issubdtype(zero_point.dtype, jnp.floating):
        return (integers.astype(jnp.float32) - zero_point.astype(jnp.float32)) * scale
    difference = affine.difference(Quantized(integers, scale, zero_point)).astype(jnp.float32)
    return difference * scale if minimum is None else exact.product(difference, scale) + minimum.astype(jnp.float32)
