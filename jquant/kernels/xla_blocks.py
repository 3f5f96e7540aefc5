"""The product with block scales by XLA's own dots: for every platform, and the reference for the kernels."""

import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact, four_bit_floats, packed_int4, signs
from jquant.kernels import xla
from jquant.kernels import zero_point as zero_points
from jquant.packed.block_matrix import Layout, PackedBlockMatrix


def block_dot(
    a: jax.Array,
    a_zero_point: jax.Array | None,
    b: PackedBlockMatrix,
    dot: Callable[[jax.Array, jax.Array], jax.Array] = xla.integer_dot,
) -> jax.Array:
    """The sum of the blocks' contributions, in order, in float32, as `jquant.kernels.block_dot` defines it.

    Args:
      a: int8 or uint8, of shape (..., M, K), in whole blocks.
      a_zero_point: of the dtype of `a`, of shape (..., M, 1) or (..., 1, 1), or None for 0.
      b: of shape (..., K, N), without padding.
      dot: multiplies int8 matrices.
    """
    b, blocks = b.n_minor(may_be_codes=True), b.scale.shape[-2]
    if blocks == 0:
        *batch, m, _ = a.shape
        return jnp.zeros((*jnp.broadcast_shapes(tuple(batch), b.shape[:-2]), m, b.shape[-1]), jnp.float32)

    minima = None if b.minimum is None else (b.minimum, row_sums(a, a_zero_point, b.block_size))
    a = _reordered(a, b)

    def term(index: jax.Array | int) -> jax.Array:
        scale = lax.dynamic_slice_in_dim(b.scale, index, 1, b.ndim - 2)
        scaled = exact.product(_product(a, a_zero_point, b, index, dot).astype(jnp.float32), exact.widen(scale))
        if minima is None:
            return scaled
        minimum, row_sum = (lax.dynamic_slice_in_dim(x, index, 1, axis) for x, axis in zip(minima, (-2, -1), strict=True))
        return exact.sum(scaled, exact.product(row_sum.astype(jnp.float32), exact.widen(minimum)))

    return lax.fori_loop(1, blocks, lambda index, r: exact.sum(r, term(index)), term(0)) if blocks > 1 else term(0)


def _product(
    a: jax.Array,
    a_zero_point: jax.Array | None,
    b: PackedBlockMatrix,
    index: jax.Array | int,
    dot: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """The integer product of a block, of shape (..., M, N)."""
    size, rank = b.block_size, a.ndim
    a_block = signs.to_int8(lax.dynamic_slice_in_dim(a, index * size, size, rank - 1))
    a_offset = zero_points.shifted(a_zero_point, a.dtype, rank)
    b_block, dtype = _block(b, index)
    b_zero_point = None if b.zero_point is None else lax.dynamic_slice_in_dim(b.zero_point, index, 1, rank - 2)
    b_offset = zero_points.shifted(b_zero_point, dtype, rank)
    column_sum = None if a_offset is None else jnp.sum(b_block, -2, dtype=jnp.int32, keepdims=True)
    row_sum = None if b_offset is None else jnp.sum(a_block, -1, dtype=jnp.int32, keepdims=True)
    return zero_points.correction(a_offset, b_offset, row_sum, column_sum, size)(dot(a_block, b_block))


def _reordered(a: jax.Array, b: PackedBlockMatrix) -> jax.Array:
    """`a` with its columns in the order in which `_block` returns the rows of B."""
    if b.layout == Layout.BYTES:
        return a
    *rows, k = a.shape
    in_words = a.reshape(*rows, k // b.block_size, b.block_size // packed_int4.PER_WORD, packed_int4.PER_WORD)
    return jnp.swapaxes(in_words, -1, -2).reshape(*rows, k)


def _block(b: PackedBlockMatrix, index: jax.Array | int) -> tuple[jax.Array, jnp.dtype]:
    """The integers of a block in int8, of shape (..., block_size, N), and the dtype before `signs.to_int8`.

    Of words, the lowest nibbles come first, then the next ones, and so on: in the order of K, each word would have to be
    unpacked separately.
    """
    stored = b.data.shape[-2] // b.scale.shape[-2]
    data = lax.dynamic_slice_in_dim(b.data, index * stored, stored, b.ndim - 2)
    if b.layout != Layout.BYTES:
        data = packed_int4.by_place(data).astype(jnp.int8).reshape(*data.shape[:-2], b.block_size, data.shape[-1])
        data = four_bit_floats.doubled(data) if b.layout == Layout.CODES else data
        data = data - np.int8(b.offset) if b.offset else data
    return data, np.dtype(np.uint8 if b.dtype == jnp.uint8 else np.int8)


def stand_in(a: jax.Array, a_zero_point: jax.Array | None, b: PackedBlockMatrix) -> jax.Array:
    """A value with the type of the result of `block_dot`, including its sharding and the mesh axes over which it varies."""
    rows = [jnp.sum(x, -1, keepdims=True, dtype=jnp.float32) for x in (a, a_zero_point) if x is not None]
    columns = [jnp.sum(x, -2, keepdims=True, dtype=jnp.float32) for x in jax.tree.leaves(b.n_minor())]
    return functools.reduce(operator.add, (*rows, *columns))


def products(a: jax.Array, a_zero_point: jax.Array | None, b: PackedBlockMatrix) -> jax.Array:
    """The integer products of all blocks, of shape (..., G, M, N)."""
    b = b.n_minor(may_be_codes=True)
    a, blocks = _reordered(a, b), jnp.arange(b.scale.shape[-2], dtype=jnp.int32)
    return jnp.moveaxis(lax.map(functools.partial(_product, a, a_zero_point, b, dot=xla.integer_dot), blocks), 0, -3)


def row_sums(a: jax.Array, a_zero_point: jax.Array | None, block_size: int) -> jax.Array:
    """The sums over each block of the rows of A, less their zero point: int32, of shape (..., M, G)."""
    *rows, k = a.shape
    sums = jnp.sum(a.reshape(*rows, k // block_size, block_size), -1, dtype=jnp.int32)
    return sums if a_zero_point is None else sums - a_zero_point.astype(jnp.int32) * block_size
