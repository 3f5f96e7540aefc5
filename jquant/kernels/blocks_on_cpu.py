"""The product with block scales on a CPU; for few rows, by multiplications along N in 16 bits, without a dot.

XLA:CPU has no product of 4-bit weights, takes long for products of small blocks, and a product with a vector is bound by
loading the weights. So words of four 4-bit weights are not unpacked in memory: each vector of words is loaded once, and its
nibbles are multiplied by the activations of their four rows in 16 bits, without a mask. As many products are added up as 16
bits hold exactly: 32 of nibbles, and 2 of bytes.
"""

import functools
import math
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact, four_bit_floats
from jquant.arithmetic.packed_int4 import PER_WORD, at, from_place
from jquant.kernels import xla, xla_blocks
from jquant.kernels.batch import with_one_batch_axis
from jquant.kernels.divisors import largest_divisor
from jquant.lowering import materialize
from jquant.lowering.varying import varying_as
from jquant.packed.block_matrix import ROWS_PER_ELEMENT, Layout, PackedBlockMatrix

# Up to this many rows of A, this is faster than a dot for each block.
_MOST_ROWS = {Layout.WORDS: 8, Layout.CODES: 8, Layout.BYTES: 1}
# The products of this many int8 with nibbles less 8, or with bytes, lie in an interval of 2**16 integers, from -32512 to
# 32768; those of half as many 9-bit differences, from -32640 to 32640. Twice a float of 4 bits is at most 12.
_MOST_PRODUCTS = {Layout.WORDS: 32, Layout.CODES: 16, Layout.BYTES: 2}
# How many rows of B a stored sum loads at most. If they lie a power of two apart, a cache cannot hold a line of many more.
_MOST_LOADS = 16
# How many stored sums one iteration of the inner loop scales: few enough to compile, many enough to be worth a loop.
_SUMS_AT_ONCE = 16
# How many stored sums of a block are added up without a loop: all of them, in blocks of up to 256.
_MOST_ADDED = 64


def block_dot(a: jax.Array, a_zero_point: jax.Array | None, b: PackedBlockMatrix) -> jax.Array:
    """`xla_blocks.block_dot`, which computes the same bits, for a CPU."""
    b = b.n_minor(may_be_codes=True)
    if not _has_few_rows(a, b):
        return xla_blocks.block_dot(a, a_zero_point, b, xla.integer_dot_on_cpu)
    shape = (*jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    a, b, a_zero_point = with_one_batch_axis(a, b, a_zero_point, shape[:-2])
    differences = a.astype(jnp.int16) - (0 if a_zero_point is None else a_zero_point.astype(jnp.int16))
    is_narrow = a.dtype == jnp.int8 and a_zero_point is None
    tiling = _tiling_for(b.block_size, b.scale.shape[-2], differences.shape[1], b.layout, is_narrow)
    return _product_of_few_rows(differences, b, tiling).reshape(shape)


def _has_few_rows(a: jax.Array, b: PackedBlockMatrix) -> bool:
    sizes = *a.shape, *b.shape
    if not all(isinstance(size, int) for size in sizes) or 0 in sizes:
        return False
    return (math.prod(a.shape[:-1]) if math.prod(b.shape[:-2]) == 1 else a.shape[-2]) <= _MOST_ROWS[b.layout]


class _Tiling(NamedTuple):
    """How the sums over K are divided.

    Attributes:
      products: how many products are added up in int16: whole words, and a divisor of a block.
      int16_sums: how many of these sums are added up in int32 before they are stored; a single one is stored in int16.
      stored_sums: how many stored sums of a block are added up at a time.
      blocks: for how many blocks sums are stored before they are scaled; a divisor of the number of blocks.
      blocks_at_once: how many of these blocks one iteration scales.
    """

    products: int
    int16_sums: int
    stored_sums: int
    blocks: int
    blocks_at_once: int


def _tiling_for(block_size: int, blocks: int, rows: int, layout: Layout, is_narrow: bool) -> _Tiling:
    """The tiling for this many rows of A, which are int8 if `is_narrow`, and otherwise differences of 9 bits.

    The stored sums take no more memory than a float32 for each block of B, unless those of a single block take more.
    """
    step = ROWS_PER_ELEMENT[layout]
    products = largest_divisor(block_size // step, _MOST_PRODUCTS[layout] // (step if is_narrow else 2 * step)) * step
    int16_sums = 1 if layout != Layout.BYTES else largest_divisor(block_size // products, _MOST_LOADS // products)
    sums = block_size // (products * int16_sums)
    trips = next(trips for trips in range(min(sums * rows, blocks), blocks + 1) if blocks % trips == 0)
    blocks_per_trip = blocks // trips
    return _Tiling(
        products=products,
        int16_sums=int16_sums,
        stored_sums=largest_divisor(sums, _MOST_ADDED),
        blocks=blocks_per_trip,
        blocks_at_once=largest_divisor(blocks_per_trip, max(1, _SUMS_AT_ONCE // sums)),
    )


def _product_of_few_rows(a: jax.Array, b: PackedBlockMatrix, tiling: _Tiling) -> jax.Array:
    """The sum of the blocks' contributions, of shape (batch, M, N).

    Args:
      a: A less its zero point, int16, of shape (batch or 1, M, K).
      b: of shape (batch or 1, K, N).
      tiling: from `_tiling_for`.
    """
    blocks, n = b.scale.shape[-2:]
    is_words, are_codes, per_element = b.layout == Layout.WORDS, b.layout == Layout.CODES, ROWS_PER_ELEMENT[b.layout]
    per_sum = tiling.products * tiling.int16_sums
    sums = b.block_size // per_sum
    batch, m = max(a.shape[0], b.scale.shape[0]), a.shape[1]
    factors = a.reshape(*a.shape[:-1], blocks * sums, per_sum)
    # The int16 sums are reduced by 1, so that their interval ends at the largest int16.
    offset = jnp.full((1, 1, blocks * sums, 1), -1, jnp.int16)
    if is_words:  # products of nibbles from 0 to 15 become, modulo 2**16, those of nibbles less 8
        offset = offset - jnp.sum(factors, -1, keepdims=True, dtype=jnp.int16) * np.int16(8)
        factors = _word_factors(factors)
    data = b.data.reshape(b.data.shape[0], blocks * sums, per_sum // per_element, n)
    # What has to be added to a stored integer, or to a nibble less 8; it is added by way of the zero point.
    shift = (8 if is_words else 0) - b.offset
    row_sums = None
    if b.zero_point is not None or b.minimum is not None or shift != 0:
        row_sums = jnp.sum(a.reshape(*a.shape[:-1], blocks, b.block_size), -1, dtype=jnp.int32)

    def integer_sums(chunk: jax.Array) -> jax.Array:
        """The sums of a chunk of `tiling.blocks` blocks, of shape (batch, M, sums, N)."""
        rows = tiling.blocks * sums
        start = chunk * rows
        chunk_factors = lax.dynamic_slice_in_dim(factors, start, rows, 2)
        first = jnp.broadcast_to(lax.dynamic_slice_in_dim(offset, start, rows, 2), (batch, m, rows, n))

        def product(k: int) -> jax.Array:
            # A slice for each element: XLA fuses these slices, but would store a single slice for all elements.
            element = lax.dynamic_slice(data, (0, start, k // per_element, 0), (data.shape[0], rows, 1, n))
            element = element.reshape(-1, 1, rows, n)
            if is_words:
                element = from_place(element, k % PER_WORD)
            if are_codes:
                element = four_bit_floats.doubled(at(element, k % PER_WORD).astype(jnp.int16))
            return element.astype(jnp.int16) * lax.slice_in_dim(chunk_factors, k, k + 1, axis=3)

        def int16_sum(number: int) -> jax.Array:
            first_product = number * tiling.products
            products = map(product, range(first_product, first_product + tiling.products))
            return functools.reduce(operator.add, products, first)

        if tiling.int16_sums == 1:
            return int16_sum(0)
        return functools.reduce(operator.add, (int16_sum(number).astype(jnp.int32) for number in range(tiling.int16_sums)))

    def contribution(stored: jax.Array, index: jax.Array, first: jax.Array) -> jax.Array:
        """The contribution of block `index`, of shape (batch, M, N), from the stored sums of blocks from `first` on."""
        start = (index - first) * sums

        def partial_sum(number: jax.Array | int) -> jax.Array:
            # Again, a slice for each row.
            places = (start + number * tiling.stored_sums + row for row in range(tiling.stored_sums))
            rows = (lax.dynamic_slice_in_dim(stored, place, 1, 2) for place in places)
            return functools.reduce(operator.add, (row[:, :, 0].astype(jnp.int32) for row in rows))

        product = partial_sum(0)
        if sums > tiling.stored_sums:
            count = sums // tiling.stored_sums
            product = lax.fori_loop(1, count, lambda number, total: total + partial_sum(number), product)
        product = product + sums * tiling.int16_sums
        if row_sums is not None:
            zero_point = -shift if b.zero_point is None else _row(b.zero_point, index).astype(jnp.int32) - shift
            product = product - zero_point * lax.dynamic_slice_in_dim(row_sums, index, 1, 2)
        scale = exact.unmerged_on_cpu(exact.numerator(_row(b.scale, index)))
        return exact.product(product.astype(jnp.float32), scale)

    def minimum_terms(first: jax.Array) -> jax.Array | None:
        """What minima add to the contributions of a chunk of blocks from `first` on, of shape (batch, M, blocks, N)."""
        if b.minimum is None:
            return None
        assert row_sums is not None
        minimum = lax.dynamic_slice_in_dim(b.minimum, first, tiling.blocks, 1)[:, None]
        factor = lax.dynamic_slice_in_dim(row_sums, first, tiling.blocks, 2)[..., None].astype(jnp.float32)
        # Stored, because XLA divides the loop that computes them among the processors, but not the loop that adds them.
        return materialize.stored(exact.product(factor, exact.unmerged_on_cpu(exact.numerator(minimum))))

    def add_chunk(chunk: jax.Array, r: jax.Array) -> jax.Array:
        stored, first = materialize.once(integer_sums(chunk)), chunk * tiling.blocks
        of_minima = minimum_terms(first)

        def add_blocks(step: jax.Array, r: jax.Array) -> jax.Array:
            for index in range(tiling.blocks_at_once):
                term = contribution(stored, first + step * tiling.blocks_at_once + index, first)
                if of_minima is not None:
                    row = lax.dynamic_slice_in_dim(of_minima, step * tiling.blocks_at_once + index, 1, 2)
                    term = exact.unmerged_on_cpu(term + row[:, :, 0])
                r = exact.unmerged_on_cpu(r + term)
            return exact.seal(r)

        return lax.fori_loop(0, tiling.blocks // tiling.blocks_at_once, add_blocks, r)

    # The sum of -0 and the first term is that term, whatever its sign.
    start = varying_as((a, b), jnp.full((batch, m, n), -0.0, jnp.float32))
    return lax.fori_loop(0, blocks // tiling.blocks, add_chunk, start)


def _word_factors(a: jax.Array) -> jax.Array:
    """The factors by which shifted words ``w[p] = word >> 4 * p`` are multiplied in place of their nibbles.

    Nibble p is ``w[p] - 16 * w[p + 1]``, so the sum over the four nibbles of a word of their products with `a` is
    ``sum over p of (a[p] - 16 * a[p - 1]) * w[p]``, modulo 2**16: no mask is needed.
    """
    by_word = a.reshape(*a.shape[:-1], -1, PER_WORD)
    previous = jnp.pad(by_word[..., :-1], [(0, 0)] * a.ndim + [(1, 0)])
    return (by_word - previous * np.int16(16)).reshape(a.shape)


def _row(x: jax.Array, index: jax.Array) -> jax.Array:
    """The row of each matrix at `index`, of shape (..., 1, N)."""
    return lax.dynamic_slice_in_dim(x, index, 1, x.ndim - 2)
