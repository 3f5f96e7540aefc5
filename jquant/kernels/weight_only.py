"""Products of floats with weights of few bits, which are converted to floats on their way into the product.

A sum of floats depends on its order, which differs between platforms: `product` has an error bound instead of fixed bits.
On a CPU, a single matrix of weights is converted in parts, so that no form of the product holds all of them as floats,
except that of weights with a scale for each row.
"""

import dataclasses
import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact, packed_int4, subbyte
from jquant.formulas import affine
from jquant.lowering.contraction import out_sharding
from jquant.lowering.partitioned import unless_partitioned
from jquant.lowering.varying import varying_as
from jquant.packed.block_matrix import Layout, PackedBlockMatrix
from jquant.quantized_tensor import Quantized

_PANEL = 128  # columns that are converted to floats at a time, for weights as they are stored
_CHUNK = 256  # rows that are converted at a time, for packed weights
_FEW_ROWS = 4  # of A, for which each row of packed weights is multiplied separately, in a loop over N
_UNROLLED = 32  # rows of weights in the body of a loop, and the fewest that are converted at a time


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class StoredWeights:
    """Weights of shape (K, N) as onnxruntime stores them, one column after another.

    Attributes:
      data: uint8, of shape (..., N, G, bytes): blocks of unsigned integers; each block has its own bytes.
      scale: floats of shape (..., N, G), or one for each row of the weights in shape (..., N, K).
      zero_point: of the shape of `scale`, uint8 or floats. None: the middle of the range.
      bits: per integer: 2, 4 or 8.
      group_size: how many rows share a scale: those of a block, or 1.
    """

    data: jax.Array
    scale: jax.Array
    zero_point: jax.Array | None
    bits: int = dataclasses.field(metadata={"static": True})
    group_size: int = dataclasses.field(metadata={"static": True})

    @property
    def block_size(self) -> int:
        return self.data.shape[-1] * 8 // self.bits


Weights = StoredWeights | PackedBlockMatrix


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def product(a: jax.Array, weights: Weights, dtype: np.dtype) -> jax.Array:
    """``a @ ((integers - zero_point) * scale)`` in float32, of shape (..., M, N).

    The derivative is that of `whole`, which holds all weights as floats.

    Args:
      a: float32, of shape (..., M, K).
      dtype: float32, or the type that both operands are rounded to first.
    """
    more = a.ndim - 2 - _batch_rank(weights)
    a = lax.expand_dims(a, range(max(-more, 0)))
    weights = jax.tree.map(lambda x: lax.expand_dims(x, range(max(more, 0))), weights)
    leaves, tree = jax.tree.flatten((a, weights))

    def on_all_weights(*leaves: jax.Array) -> tuple[jax.Array]:
        a, weights = tree.unflatten(leaves)
        return (whole(a, weights, dtype),)

    def in_parts(*leaves: jax.Array) -> tuple[jax.Array]:
        a, weights = tree.unflatten(leaves)
        return (_in_parts(a, weights, dtype),)

    (result,) = unless_partitioned(on_all_weights, on_all_weights, *leaves, on_cpu=in_parts)
    return exact.seal(result)


@product.defjvp
def _product_jvp(dtype, primals, tangents):
    _, tangent = jax.jvp(lambda a, weights: whole(a, weights, dtype), primals, tangents)
    return product(*primals, dtype), tangent


def _batch_rank(weights: Weights) -> int:
    return weights.scale.ndim - 2


def whole(a: jax.Array, weights: Weights, dtype: np.dtype) -> jax.Array:
    """The product with the matrix of all weights."""
    return _dot(a.astype(dtype), dequantized(weights, a.shape[-1]).astype(dtype))


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    options = {"precision": lax.Precision.HIGHEST, "preferred_element_type": jnp.float32}
    return jnp.matmul(a, b, out_sharding=out_sharding(a, b, -2, -1), **options)


def dequantized(weights: Weights, k: int) -> jax.Array:
    """``fl(fl(integers - zero_point) * scale)`` in float32, of shape (..., K, N)."""
    if isinstance(weights, PackedBlockMatrix):
        return _rows(weights, weights.integers())[..., :k, :]
    groups = weights.scale.shape[-1]
    values = subbyte.unpacked(weights.data, weights.bits)
    values = values.reshape(*values.shape[:-2], values.shape[-2] * values.shape[-1])[..., : groups * weights.group_size]
    real = _columns(weights, values.reshape(*values.shape[:-1], groups, weights.group_size))
    return jnp.swapaxes(real[..., :k], -1, -2)


def _columns(weights: StoredWeights, values: jax.Array) -> jax.Array:
    """Integers of shape (..., N, G, some) as floats of shape (..., N, G * some)."""
    zero_point = np.uint8(2 ** (weights.bits - 1)) if weights.zero_point is None else weights.zero_point[..., None]
    real = _real(values, weights.scale[..., None], zero_point)
    return real.reshape(*real.shape[:-2], real.shape[-2] * real.shape[-1])


def _rows(weights: PackedBlockMatrix, integers: jax.Array) -> jax.Array:
    """Integers of whole blocks, of shape (..., G * block, N), as floats."""
    *batch, rows, n = integers.shape
    blocks = integers.reshape(*batch, rows // weights.block_size, weights.block_size, n)
    zero_point = None if weights.zero_point is None else weights.zero_point[..., None, :]
    real = _real(blocks, weights.scale[..., None, :], zero_point)
    return real.reshape(*real.shape[:-3], rows, n)


def _real(values: jax.Array, scale: jax.Array, zero_point) -> jax.Array:
    """``fl(fl(values - zero_point) * scale)``"""
    if zero_point is not None and jnp.issubdtype(zero_point.dtype, jnp.floating):
        difference = exact.difference(values.astype(jnp.float32), exact.widen(zero_point))
    else:
        difference = affine.difference(Quantized(values, scale, zero_point)).astype(jnp.float32)
    return exact.product(difference, exact.widen(scale))


def _in_parts(a: jax.Array, weights: Weights, dtype: np.dtype) -> jax.Array:
    """The product, with part of the weights as floats at a time.

    It is that of `whole` if there are several matrices of weights, or if their sizes are not known.
    """
    rank = _batch_rank(weights)
    leaves = jax.tree.leaves(weights)
    is_static = all(isinstance(size, int) for x in leaves for size in x.shape)  # and no symbolic size of `jax.export`
    if not is_static or any(math.prod(x.shape[:rank]) != 1 for x in leaves) or any(0 in x.shape for x in (a, *leaves)):
        return whole(a, weights, dtype)
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
    weights = jax.tree.map(lambda x: x.reshape(x.shape[rank:]), weights)
    if isinstance(weights, StoredWeights):
        result = _by_panels(rows, weights, dtype)
    elif dtype == jnp.float32 and rows.shape[0] in range(1, _FEW_ROWS + 1):
        result = _by_blocks(rows, weights)
    else:
        result = _by_chunks(rows, weights, dtype)
    return result.reshape(*a.shape[:-1], result.shape[-1])


def _by_panels(a: jax.Array, weights: StoredWeights, dtype: np.dtype) -> jax.Array:
    """One panel of columns at a time. The integers at one position in their bytes take the matching numbers of A."""
    n = weights.data.shape[0]
    panels = n // _PANEL
    if panels < 2 or weights.group_size != weights.block_size:
        return whole(a, weights, dtype)
    if a.shape[0] == 1:  # for a single row, XLA:CPU uses a loop of its own, which is slower than the product of two
        return _by_panels(jnp.concatenate([a, a]), weights, dtype)[:1]
    count = 8 // weights.bits
    of_places = [a[:, place::count].astype(dtype) for place in range(count)]

    def panel(_, part: StoredWeights) -> tuple[None, jax.Array]:
        values = subbyte.in_each_byte(part.data, weights.bits)
        columns = (_columns(part, each)[:, : x.shape[1]].astype(dtype) for each, x in zip(values, of_places, strict=True))
        return None, functools.reduce(operator.add, (_dot(x, w.T) for x, w in zip(of_places, columns, strict=True)))

    first, rest = (jax.tree.map(lambda x, part=part: x[part], weights) for part in _split(panels * _PANEL))
    _, results = lax.scan(panel, None, jax.tree.map(lambda x: x.reshape(panels, _PANEL, *x.shape[1:]), first))
    results = jnp.swapaxes(results, 0, 1).reshape(a.shape[0], panels * _PANEL)
    return results if n == results.shape[1] else jnp.concatenate([results, whole(a, rest, dtype)], axis=1)


def _split(place: int) -> tuple[slice, slice]:
    return slice(place), slice(place, None)


def _by_blocks(a: jax.Array, weights: PackedBlockMatrix) -> jax.Array:
    """One block at a time, and within it one row at a time, elementwise along N: for a few rows of A.

    A block is multiplied as integers less their zero point, which are exact, and its sum is multiplied by the scale.
    """
    block_size, blocks = weights.block_size, weights.scale.shape[0]
    per_row = _rows_of_data(weights)
    unrolled = per_row * _largest_divisor(block_size // per_row, _UNROLLED // per_row)
    pieces = block_size // unrolled

    def block(total: jax.Array, part: tuple) -> tuple[jax.Array, None]:
        a, data, scale, zero_point = part
        zero = np.int16(weights.offset)
        zero_point = zero if zero_point is None else zero_point.astype(jnp.int16) + zero

        def piece(sum: jax.Array, part: tuple) -> tuple[jax.Array, None]:
            a, data = part
            for row in range(unrolled):
                number = data[row // per_row]
                if per_row > 1:
                    number = packed_int4.at(number, row % packed_int4.PER_WORD)
                sum = sum + a[row, :, None] * (number.astype(jnp.int16) - zero_point).astype(jnp.float32)[None]
            return sum, None

        a, data = (x.reshape(pieces, x.shape[0] // pieces, x.shape[1]) for x in (a, data))
        sum = jnp.zeros_like(total)
        sum, _ = piece(sum, (a[0], data[0])) if pieces < 2 else lax.scan(piece, sum, (a, data))
        return total + sum * exact.widen(scale)[None], None

    start = _zeros(a, weights)
    a = jnp.pad(a, [(0, 0), (0, weights.padding)]).T.reshape(blocks, block_size, a.shape[0])
    data = weights.data.reshape(blocks, block_size // per_row, weights.data.shape[1])
    total, _ = lax.scan(block, start, (a, data, weights.scale, weights.zero_point))
    return total


def _by_chunks(a: jax.Array, weights: PackedBlockMatrix, dtype: np.dtype) -> jax.Array:
    """One chunk of whole blocks at a time."""
    weights = _in_short_blocks(weights)
    blocks, k = weights.scale.shape[0], a.shape[1]
    chunks = blocks // _largest_divisor(blocks, max(1, _CHUNK // weights.block_size))
    if chunks < 2:
        return whole(a, weights, dtype)
    a = jnp.pad(a, [(0, 0), (0, weights.padding)])
    rows = a.shape[1] // chunks

    def chunk(total: jax.Array, part: Any) -> tuple[jax.Array, None]:
        number, a, part = part
        real = _rows(part, part.integers())
        if weights.padding:  # for a scale that is not finite, 0 times a padding row would be NaN
            row = lax.broadcasted_iota(jnp.int32, real.shape, 0) + number * rows
            real = jnp.where(row < k, real, 0)
        return total + _dot(a, real.astype(dtype)), None

    parts = jax.tree.map(lambda x: x.reshape(chunks, x.shape[0] // chunks, x.shape[1]), weights)
    of_chunks = jnp.swapaxes(a.astype(dtype).reshape(a.shape[0], chunks, rows), 0, 1)
    total, _ = lax.scan(chunk, _zeros(a, weights), (jnp.arange(chunks, dtype=jnp.int32), of_chunks, parts))
    return total


def _in_short_blocks(weights: PackedBlockMatrix) -> PackedBlockMatrix:
    """The same weights in blocks that fit into a chunk, with the scale of a longer block for each part of it."""
    size, per_row = weights.block_size, _rows_of_data(weights)
    part = per_row * _largest_divisor(size // per_row, _CHUNK // per_row)
    if size <= _CHUNK or part < _UNROLLED:  # products of a few rows at a time would take too long
        return weights
    scale, zero_point = jax.tree.map(lambda x: jnp.repeat(x, size // part, axis=0), (weights.scale, weights.zero_point))
    return dataclasses.replace(weights, scale=scale, zero_point=zero_point, block_size=part)


def _rows_of_data(weights: PackedBlockMatrix) -> int:
    """How many rows of the weights a row of the data holds."""
    return 4 if weights.layout == Layout.WORDS else 1


def _zeros(a: jax.Array, weights: PackedBlockMatrix) -> jax.Array:
    """The start of a sum."""
    return varying_as((a, weights), jnp.zeros((a.shape[0], weights.scale.shape[-1]), jnp.float32))


def _largest_divisor(number: int, limit: int) -> int:
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)
