"""The product with block scales on a CPU: for few rows, by words of four 4-bit weights, without a dot.

XLA:CPU has no product of 4-bit weights, and the product with a vector is bound by loading the weights. So they are not
unpacked in memory: each vector of words is loaded once, and its nibbles are multiplied by the activations of their four rows
in 16 bits, without being masked. As many products are added up as 16 bits hold exactly.
"""

import functools
import math
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact
from jquant.arithmetic.words import PER_WORD, from_place
from jquant.kernels import xla, xla_blocks
from jquant.kernels.batch import with_one_batch_axis
from jquant.kernels.varying import varying_as
from jquant.packed_block_matrix import Layout, PackedBlockMatrix

# Up to this many rows, the words are faster than products of unpacked blocks.
_MOST_ROWS = 8
# This many products of a nibble less 8 with an int8, or with a 9-bit difference, lie in an interval of 2**16 integers:
# from -32512 to 32768, and from -32640 to 32640.
_PRODUCTS_OF_INT8, _PRODUCTS_OF_DIFFERENCES = 32, 16
# How many 16-bit sums one iteration of the inner loop scales: few enough to compile, many enough to be worth a loop.
_SUMS_AT_ONCE = 16
# How many of those of one block are added up without a loop: all of them, in blocks of up to 256.
_MOST_ADDED = 64


def block_dot(a: jax.Array, a_zero_point: jax.Array | None, b: PackedBlockMatrix) -> jax.Array:
    """As `xla_blocks.block_dot`."""
    b = b.n_minor()
    if not _are_few_rows(a, b):
        return xla_blocks.block_dot(a, a_zero_point, b, xla.integer_dot_on_cpu)
    shape = (*jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    a, b, a_zero_point = with_one_batch_axis(a, b, a_zero_point, shape[:-2])
    differences = a.astype(jnp.int16) - (0 if a_zero_point is None else a_zero_point.astype(jnp.int16))
    is_narrow = a.dtype == jnp.int8 and a_zero_point is None
    most = _PRODUCTS_OF_INT8 if is_narrow else _PRODUCTS_OF_DIFFERENCES
    plan = _plan(b.block_size, b.scale.shape[-2], differences.shape[1], most)
    return _few_rows(differences, b, plan).reshape(shape)


def _are_few_rows(a: jax.Array, b: PackedBlockMatrix) -> bool:
    sizes = *a.shape, *b.shape
    if b.layout != Layout.WORDS or not all(isinstance(size, int) for size in sizes) or 0 in sizes:
        return False
    return (math.prod(a.shape[:-1]) if math.prod(b.shape[:-2]) == 1 else a.shape[-2]) <= _MOST_ROWS


class _Plan(NamedTuple):
    """How the sums are divided up.

    Attributes:
      products: how many products are added up in 16 bits: whole words, and a divisor of a block.
      added: how many sums of a block are added up at a time.
      blocks: for how many blocks the sums are stored before they are scaled; a divisor of the number of blocks.
      at_once: how many of those blocks one iteration scales; if there are several, it takes at least two iterations.
    """

    products: int
    added: int
    blocks: int
    at_once: int


def _plan(block_size: int, blocks: int, rows: int, most_products: int) -> _Plan:
    """The plan for this many rows.

    Its 16-bit sums take no more memory than a float32 for each block of B, unless those of a single block take more.
    """
    products = max(size for size in range(PER_WORD, most_products + 1, PER_WORD) if block_size % size == 0)
    sums = block_size // products
    trips = next(trips for trips in range(min(sums * rows, blocks), blocks + 1) if blocks % trips == 0)
    stored = blocks // trips
    at_once = [n for n in range(1, stored) if stored % n == 0 and n * sums <= _SUMS_AT_ONCE]
    added = next(n for n in range(min(sums, _MOST_ADDED), 0, -1) if sums % n == 0)
    return _Plan(products, added, stored, max(at_once, default=1))


def _few_rows(a: jax.Array, b: PackedBlockMatrix, plan: _Plan) -> jax.Array:
    """The sum of the blocks' contributions, of shape (batch, M, N).

    Args:
      a: A less its zero point, int16, of shape (batch or 1, M, K).
      b: of shape (batch or 1, K, N).
      plan: as returned by `_plan`.
    """
    blocks, n = b.scale.shape[-2:]
    sums = b.block_size // plan.products
    batch, m = max(a.shape[0], b.scale.shape[0]), a.shape[1]
    a_sums = a.reshape(*a.shape[:-1], blocks * sums, plan.products)
    # Added to the products of the nibbles from 0 to 15, modulo 2**16. It makes them products of nibbles less 8, and
    # subtracts one, so that the interval of the sums ends at the largest int16.
    offset = jnp.sum(a_sums, -1, keepdims=True, dtype=jnp.int16) * np.int16(-8) - np.int16(1)
    factors = _factors(a_sums)
    words = b.data.reshape(b.data.shape[0], blocks * sums, plan.products // PER_WORD, n)
    # A nibble less 8 is the int4 itself, or the uint4 less 8; the latter 8 is made up for in the zero point.
    shift = 8 - b.offset
    row_sums = None
    if b.zero_point is not None or shift != 0:
        row_sums = jnp.sum(a.reshape(*a.shape[:-1], blocks, b.block_size), -1, dtype=jnp.int32)

    def integers(chunk: jax.Array) -> jax.Array:
        """The 16-bit sums of `plan.blocks` blocks, of shape (batch, M, sums, N)."""
        rows = plan.blocks * sums
        start = chunk * rows
        some_factors = lax.dynamic_slice_in_dim(factors, start, rows, 2)
        total = jnp.broadcast_to(lax.dynamic_slice_in_dim(offset, start, rows, 2), (batch, m, rows, n))
        for k in range(plan.products):
            # One slice per word: XLA fuses these, but would store a single slice for all words.
            word = lax.dynamic_slice(words, (0, start, k // PER_WORD, 0), (words.shape[0], rows, 1, n))
            part = lax.bitcast_convert_type(from_place(word.reshape(-1, 1, rows, n), k % PER_WORD), jnp.int16)
            total = total + part * lax.slice_in_dim(some_factors, k, k + 1, axis=3)
        return total

    def contribution(integers: jax.Array, index: jax.Array, first: jax.Array) -> jax.Array:
        """The contribution of block `index`, of shape (batch, M, N); it is that many after the `first` in `integers`."""
        start = (index - first) * sums

        def sum_of_some(number: jax.Array | int) -> jax.Array:
            # Again, one slice per row.
            places = (start + number * plan.added + row for row in range(plan.added))
            rows = (lax.dynamic_slice_in_dim(integers, place, 1, 2) for place in places)
            return functools.reduce(operator.add, (row[:, :, 0].astype(jnp.int32) for row in rows))

        product = sum_of_some(0)
        if sums > plan.added:
            product = lax.fori_loop(1, sums // plan.added, lambda number, total: total + sum_of_some(number), product)
        product = product + sums
        if row_sums is not None:
            zero_point = -shift if b.zero_point is None else _row(b.zero_point, index).astype(jnp.int32) - shift
            product = product - zero_point * lax.dynamic_slice_in_dim(row_sums, index, 1, 2)
        scale = exact.unmerged_on_cpu(exact.numerator(_row(b.scale, index)))
        return exact.product(product.astype(jnp.float32), scale)

    def of_chunk(chunk: jax.Array, r: jax.Array) -> jax.Array:
        stored, first = integers(chunk), chunk * plan.blocks

        def at_once(step: jax.Array, r: jax.Array) -> jax.Array:
            for index in range(plan.at_once):
                term = contribution(stored, first + step * plan.at_once + index, first)
                r = exact.unmerged_on_cpu(r + term)
            return exact.seal(r)

        # A loop of its own: otherwise XLA would recompute the integers where they are scaled.
        return lax.fori_loop(0, plan.blocks // plan.at_once, at_once, r)

    # The sum with -0 is the first term, whatever its sign.
    start = varying_as((a, b), jnp.full((batch, m, n), -0.0, jnp.float32))
    return lax.fori_loop(0, blocks // plan.blocks, of_chunk, start)


def _factors(a: jax.Array) -> jax.Array:
    """What the parts of words are multiplied by, where part p of a word is ``w[p] = word >> 4 * p``.

    A nibble is ``w[p] - 16 * w[p + 1]``, so four of them times `a` are ``sum over p of (a[p] - 16 * a[p - 1]) * w[p]``,
    modulo 2**16: no mask is needed.
    """
    of_words = a.reshape(*a.shape[:-1], -1, PER_WORD)
    previous = jnp.pad(of_words[..., :-1], [(0, 0)] * a.ndim + [(1, 0)])
    return (of_words - previous * np.int16(16)).reshape(a.shape)


def _row(x: jax.Array, index: jax.Array) -> jax.Array:
    return lax.dynamic_slice_in_dim(x, index, 1, x.ndim - 2)
