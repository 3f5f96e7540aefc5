"""The product with a single matrix of weights on a CPU, which converts a part of the weights to floats at a time.

No form of the product holds all weights as floats, except for weights with a scale for each row.
"""

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact, packed_int4, subbyte
from jquant.kernels.divisors import largest_divisor
from jquant.kernels.weight_only import dense
from jquant.kernels.weights import StoredWeights, Weights, as_one_matrix, dequantized_columns, dequantized_rows
from jquant.lowering.varying import varying_as
from jquant.packed.block_matrix import ROWS_PER_ELEMENT, PackedBlockMatrix

_PANEL = 128  # columns that are converted to floats at a time, for weights as they are stored
_CHUNK = 256  # rows that are converted at a time, for packed weights
_FEW_ROWS = 4  # of A, for which each row of packed weights is multiplied separately, in a loop over N
_UNROLLED = 32  # rows of weights in the body of a loop, and the fewest that are converted at a time


def matmul(a: jax.Array, weights: Weights, dtype: np.dtype) -> jax.Array:
    """`dense.matmul`, with a part of the weights as floats at a time.

    With all of them if there are several matrices of weights, or if sizes are symbolic.
    """
    one_matrix = as_one_matrix(a, weights)
    if one_matrix is None or any(0 in x.shape for x in (a, *jax.tree.leaves(weights))):
        return dense.matmul(a, weights, dtype)
    rows, weights = one_matrix
    if isinstance(weights, StoredWeights):
        result = _by_panels(rows, weights, dtype)
    elif dtype == jnp.float32 and rows.shape[0] in range(1, _FEW_ROWS + 1):
        result = _by_blocks(rows, weights.n_minor())
    else:
        result = _by_chunks(rows, weights.n_minor(), dtype)
    return result.reshape(*a.shape[:-1], result.shape[-1])


def _by_panels(a: jax.Array, weights: StoredWeights, dtype: np.dtype) -> jax.Array:
    """One panel of columns at a time, as a sum over the positions of an integer in its byte, each with its columns of A."""
    n = weights.data.shape[0]
    panels = n // _PANEL
    if panels < 2 or weights.group_size != weights.block_size:
        return dense.matmul(a, weights, dtype)
    if a.shape[0] == 1:  # for a single row, XLA:CPU uses a loop of its own, which is slower than the product of two
        return _by_panels(jnp.concatenate([a, a]), weights, dtype)[:1]
    count = 8 // weights.bits
    a_by_place = [a[:, place::count].astype(dtype) for place in range(count)]

    def panel(_, part: StoredWeights) -> tuple[None, jax.Array]:
        by_place = zip(a_by_place, subbyte.in_each_byte(part.data, weights.bits), strict=True)
        operands = ((x, dequantized_columns(part, integers)[:, : x.shape[1]].astype(dtype)) for x, integers in by_place)
        return None, functools.reduce(operator.add, (dense.dot(x, w.T) for x, w in operands))

    columns = panels * _PANEL
    in_panels = jax.tree.map(lambda x: x[:columns], weights)
    rest = jax.tree.map(lambda x: x[columns:], weights)
    _, results = lax.scan(panel, None, jax.tree.map(lambda x: x.reshape(panels, _PANEL, *x.shape[1:]), in_panels))
    results = jnp.swapaxes(results, 0, 1).reshape(a.shape[0], columns)
    return results if n == columns else jnp.concatenate([results, dense.matmul(a, rest, dtype)], axis=1)


def _by_blocks(a: jax.Array, weights: PackedBlockMatrix) -> jax.Array:
    """One block at a time, and within it one row at a time, element-wise along N: for a few rows of A.

    A block is multiplied as integers less their zero point, which are exact floats, and the sum is multiplied by the scale.
    Weights with a minimum are multiplied themselves: the two terms of a weight may cancel, and separate sums of them would
    not, within the promised bound.
    """
    if weights.minimum is not None and weights.padding:  # padding is no weight: it may be NaN if a scale is not finite
        whole, last = _last_block_apart(weights)
        k = whole.shape[0]
        return _by_blocks(a[:, :k], whole) + dense.matmul(a[:, k:], last, np.dtype(np.float32))
    block_size, blocks = weights.block_size, weights.scale.shape[0]
    per_row = ROWS_PER_ELEMENT[weights.layout]
    unrolled = per_row * largest_divisor(block_size // per_row, _UNROLLED // per_row)
    pieces = block_size // unrolled

    def block(total: jax.Array, part: tuple) -> tuple[jax.Array, None]:
        a, data, scale, zero_point, minimum = part
        offset = np.int16(weights.offset)
        zero_point = offset if zero_point is None else zero_point.astype(jnp.int16) + offset
        scale, minimum = exact.widen(scale), None if minimum is None else exact.widen(minimum)

        def factor(integers: jax.Array) -> jax.Array:
            """The weights of a row, or without a minimum what the scale makes weights of."""
            difference = (integers.astype(jnp.int16) - zero_point).astype(jnp.float32)
            if minimum is None:
                return difference
            return exact.unmerged_on_cpu(exact.product(difference, scale) + minimum)

        def piece(sum: jax.Array, part: tuple) -> tuple[jax.Array, None]:
            a, data = part
            for row in range(unrolled):
                integers = data[row // per_row]
                if per_row > 1:
                    integers = packed_int4.at(integers, row % packed_int4.PER_WORD)
                sum = sum + a[row, :, None] * factor(integers)[None]
            return sum, None

        a, data = (x.reshape(pieces, x.shape[0] // pieces, x.shape[1]) for x in (a, data))
        sum = jnp.zeros_like(total)
        sum, _ = piece(sum, (a[0], data[0])) if pieces < 2 else lax.scan(piece, sum, (a, data))
        return total + (sum * scale[None] if minimum is None else sum), None

    start = _zeros(a, weights)
    a = jnp.pad(a, [(0, 0), (0, weights.padding)]).T.reshape(blocks, block_size, a.shape[0])
    data = weights.data.reshape(blocks, block_size // per_row, weights.data.shape[1])
    total, _ = lax.scan(block, start, (a, data, weights.scale, weights.zero_point, weights.minimum))
    return total


def _last_block_apart(weights: PackedBlockMatrix) -> tuple[PackedBlockMatrix, PackedBlockMatrix]:
    """All blocks but the last, and the last one, which has the padding."""
    blocks = weights.scale.shape[0]
    whole = jax.tree.map(lambda x: x[: -(x.shape[0] // blocks)], weights)
    last = jax.tree.map(lambda x: x[-(x.shape[0] // blocks) :], weights)
    return dataclasses.replace(whole, padding=0), last


def _by_chunks(a: jax.Array, weights: PackedBlockMatrix, dtype: np.dtype) -> jax.Array:
    """One chunk of whole blocks at a time."""
    weights = _with_short_blocks(weights)
    blocks, k = weights.scale.shape[0], a.shape[1]
    chunks = blocks // largest_divisor(blocks, max(1, _CHUNK // weights.block_size))
    if chunks < 2:
        return dense.matmul(a, weights, dtype)
    a = jnp.pad(a, [(0, 0), (0, weights.padding)])
    rows = a.shape[1] // chunks

    def chunk(total: jax.Array, part: Any) -> tuple[jax.Array, None]:
        number, a, part = part
        real = dequantized_rows(part, part.integers())
        if weights.padding:  # with a scale that is not finite, the product of 0 and a padding row would be NaN
            row = lax.broadcasted_iota(jnp.int32, real.shape, 0) + number * rows
            real = jnp.where(row < k, real, 0)
        return total + dense.dot(a, real.astype(dtype)), None

    parts = jax.tree.map(lambda x: x.reshape(chunks, x.shape[0] // chunks, x.shape[1]), weights)
    a_parts = jnp.swapaxes(a.astype(dtype).reshape(a.shape[0], chunks, rows), 0, 1)
    total, _ = lax.scan(chunk, _zeros(a, weights), (jnp.arange(chunks, dtype=jnp.int32), a_parts, parts))
    return total


def _with_short_blocks(weights: PackedBlockMatrix) -> PackedBlockMatrix:
    """Weights in blocks that fit into a chunk: longer blocks are divided, and their scales repeated."""
    size, per_row = weights.block_size, ROWS_PER_ELEMENT[weights.layout]
    part = per_row * largest_divisor(size // per_row, _CHUNK // per_row)
    if size <= _CHUNK or part < _UNROLLED:  # products of a few rows at a time would take too long
        return weights
    by_block = weights.scale, weights.zero_point, weights.minimum
    scale, zero_point, minimum = jax.tree.map(lambda x: jnp.repeat(x, size // part, axis=0), by_block)
    return dataclasses.replace(weights, scale=scale, zero_point=zero_point, minimum=minimum, block_size=part)


def _zeros(a: jax.Array, weights: PackedBlockMatrix) -> jax.Array:
    """The start of the sum over K, of shape (M, N)."""
    return varying_as((a, weights), jnp.zeros((a.shape[0], weights.scale.shape[-1]), jnp.float32))
