"""The product with block scales on a CPU: for few rows, without a dot, by rows or by words of four 4-bit weights.

XLA:CPU has no product of 4-bit weights, it takes long for products of small blocks, and a product with a vector is bound by
loading the weights. So words are not unpacked in memory: each vector of them is loaded once, and its nibbles are multiplied
by the activations of their four rows in 16 bits, without being masked. As many products are added up as 16 bits hold
exactly: 32 of nibbles, and 2 of bytes.
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
from jquant.arithmetic.packed_int4 import PER_WORD, from_place
from jquant.kernels import xla, xla_blocks
from jquant.kernels.batch import with_one_batch_axis
from jquant.lowering import materialize
from jquant.lowering.varying import varying_as
from jquant.packed.block_matrix import Layout, PackedBlockMatrix

# Up to this many rows, this is faster than products of blocks.
_MOST_ROWS = {Layout.WORDS: 8, Layout.BYTES: 1}
# The products of this many int8 with nibbles less 8, or with bytes, lie in an interval of 2**16 integers, from -32512 to
# 32768; those of half as many 9-bit differences, from -32640 to 32640.
_MOST_PRODUCTS = {Layout.WORDS: 32, Layout.BYTES: 2}
# How many rows an element of the data holds.
_PER_ELEMENT = {Layout.WORDS: PER_WORD, Layout.BYTES: 1}
# How many rows one sum loads at most. Where they lie a power of two apart, a cache cannot hold a line of each of many more.
_MOST_LOADS = 16
# How many sums one iteration of the inner loop scales: few enough to compile, many enough to be worth a loop.
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
    plan = _plan(b.block_size, b.scale.shape[-2], differences.shape[1], b.layout, is_narrow)
    return _few_rows(differences, b, plan).reshape(shape)


def _are_few_rows(a: jax.Array, b: PackedBlockMatrix) -> bool:
    sizes = *a.shape, *b.shape
    if not all(isinstance(size, int) for size in sizes) or 0 in sizes:
        return False
    return (math.prod(a.shape[:-1]) if math.prod(b.shape[:-2]) == 1 else a.shape[-2]) <= _MOST_ROWS[b.layout]


class _Plan(NamedTuple):
    """How the sums are divided up.

    Attributes:
      products: how many products are added up in 16 bits: whole words, and a divisor of a block.
      widened: how many of those sums are added up in 32 bits before they are stored; one alone is stored in 16 bits.
      added: how many stored sums of a block are added up at a time.
      blocks: for how many blocks the sums are stored before they are scaled; a divisor of the number of blocks.
      at_once: how many of those blocks one iteration scales.
    """

    products: int
    widened: int
    added: int
    blocks: int
    at_once: int


def _plan(block_size: int, blocks: int, rows: int, layout: Layout, is_narrow: bool) -> _Plan:
    """The plan for this many rows, of int8 if they are narrow, or else of 9-bit differences.

    Its sums take no more memory than a float32 for each block of B, unless those of a single block take more.
    """
    step = _PER_ELEMENT[layout]
    products = _largest_divisor(block_size // step, _MOST_PRODUCTS[layout] // (step if is_narrow else 2 * step)) * step
    widened = 1 if layout == Layout.WORDS else _largest_divisor(block_size // products, _MOST_LOADS // products)
    sums = block_size // (products * widened)
    trips = next(trips for trips in range(min(sums * rows, blocks), blocks + 1) if blocks % trips == 0)
    stored = blocks // trips
    at_once = _largest_divisor(stored, max(1, _SUMS_AT_ONCE // sums))
    return _Plan(products, widened, _largest_divisor(sums, _MOST_ADDED), stored, at_once)


def _largest_divisor(number: int, most: int) -> int:
    return next(divisor for divisor in range(min(number, most), 0, -1) if number % divisor == 0)


def _few_rows(a: jax.Array, b: PackedBlockMatrix, plan: _Plan) -> jax.Array:
    """The sum of the blocks' contributions, of shape (batch, M, N).

    Args:
      a: A less its zero point, int16, of shape (batch or 1, M, K).
      b: of shape (batch or 1, K, N).
      plan: as returned by `_plan`.
    """
    blocks, n = b.scale.shape[-2:]
    of_words, per_element = b.layout == Layout.WORDS, _PER_ELEMENT[b.layout]
    per_sum = plan.products * plan.widened
    sums = b.block_size // per_sum
    batch, m = max(a.shape[0], b.scale.shape[0]), a.shape[1]
    factors = a.reshape(*a.shape[:-1], blocks * sums, per_sum)
    # One less than the sums in 16 bits, so that their interval ends at the largest int16.
    offset = jnp.full((1, 1, blocks * sums, 1), -1, jnp.int16)
    if of_words:  # products of the nibbles from 0 to 15 become, modulo 2**16, those of nibbles less 8
        offset = offset - jnp.sum(factors, -1, keepdims=True, dtype=jnp.int16) * np.int16(8)
        factors = _factors_of_parts(factors)
    data = b.data.reshape(b.data.shape[0], blocks * sums, per_sum // per_element, n)
    # What is to be added to a stored integer, or to a nibble less 8. It is made up for in the zero point.
    shift = (8 if of_words else 0) - b.offset
    row_sums = None
    if b.zero_point is not None or shift != 0:
        row_sums = jnp.sum(a.reshape(*a.shape[:-1], blocks, b.block_size), -1, dtype=jnp.int32)

    def integers(chunk: jax.Array) -> jax.Array:
        """The sums of `plan.blocks` blocks, of shape (batch, M, sums, N)."""
        rows = plan.blocks * sums
        start = chunk * rows
        some_factors = lax.dynamic_slice_in_dim(factors, start, rows, 2)
        first = jnp.broadcast_to(lax.dynamic_slice_in_dim(offset, start, rows, 2), (batch, m, rows, n))

        def product(k: int) -> jax.Array:
            # One slice per element: XLA fuses these, but would store a single slice for all of them.
            element = lax.dynamic_slice(data, (0, start, k // per_element, 0), (data.shape[0], rows, 1, n))
            element = element.reshape(-1, 1, rows, n)
            if of_words:
                element = from_place(element, k % PER_WORD)
            return element.astype(jnp.int16) * lax.slice_in_dim(some_factors, k, k + 1, axis=3)

        def in_16_bits(number: int) -> jax.Array:
            first_product = number * plan.products
            products = map(product, range(first_product, first_product + plan.products))
            return functools.reduce(operator.add, products, first)

        if plan.widened == 1:
            return in_16_bits(0)
        return functools.reduce(operator.add, (in_16_bits(number).astype(jnp.int32) for number in range(plan.widened)))

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
        product = product + sums * plan.widened
        if row_sums is not None:
            zero_point = -shift if b.zero_point is None else _row(b.zero_point, index).astype(jnp.int32) - shift
            product = product - zero_point * lax.dynamic_slice_in_dim(row_sums, index, 1, 2)
        scale = exact.unmerged_on_cpu(exact.numerator(_row(b.scale, index)))
        return exact.product(product.astype(jnp.float32), scale)

    def of_chunk(chunk: jax.Array, r: jax.Array) -> jax.Array:
        stored, first = materialize.once(integers(chunk)), chunk * plan.blocks

        def at_once(step: jax.Array, r: jax.Array) -> jax.Array:
            for index in range(plan.at_once):
                term = contribution(stored, first + step * plan.at_once + index, first)
                r = exact.unmerged_on_cpu(r + term)
            return exact.seal(r)

        return lax.fori_loop(0, plan.blocks // plan.at_once, at_once, r)

    # The sum with -0 is the first term, whatever its sign.
    start = varying_as((a, b), jnp.full((batch, m, n), -0.0, jnp.float32))
    return lax.fori_loop(0, blocks // plan.blocks, of_chunk, start)


def _factors_of_parts(a: jax.Array) -> jax.Array:
    """What the parts of words are multiplied by, where part p of a word is ``w[p] = word >> 4 * p``.

    A nibble is ``w[p] - 16 * w[p + 1]``, so four of them times `a` are ``sum over p of (a[p] - 16 * a[p - 1]) * w[p]``,
    modulo 2**16: no mask is needed.
    """
    of_words = a.reshape(*a.shape[:-1], -1, PER_WORD)
    previous = jnp.pad(of_words[..., :-1], [(0, 0)] * a.ndim + [(1, 0)])
    return (of_words - previous * np.int16(16)).reshape(a.shape)


def _row(x: jax.Array, index: jax.Array) -> jax.Array:
    return lax.dynamic_slice_in_dim(x, index, 1, x.ndim - 2)
