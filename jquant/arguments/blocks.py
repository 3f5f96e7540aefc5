"""Arguments of products with block scales: the blocks and how they are summed, and what is given beside either matrix."""

import sys
from collections.abc import Mapping

import numpy as np
from jax.typing import ArrayLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.call import Call
from jquant.arguments.descriptor import Shaped, Signature
from jquant.arguments.naming import message
from jquant.arguments.operands import Operand
from jquant.arguments.statics import integer
from jquant.arithmetic.broadcasting import aligned, broadcasts
from jquant.packed.block_matrix import PackedBlockMatrix

# The most products of bytes less their zero points whose sum int32 holds: 255 * 255 * 2**15 is less than 2**31.
_LONGEST_BLOCK = 2**15


def block_size_of(operator: str, block_size: int | None, b: Shaped, b_scale: Shaped, names: tuple[str, str]) -> int:
    """`block_size`; if None, that which follows from the shapes of a matrix and its scales, called `names` in errors.

    Asserts that both have the same batch, and that K has as many blocks as there are scales.
    """
    k, blocks = b.shape[-2], b_scale.shape[-2]
    _require_same_batch(operator, b.shape, b_scale.shape, names)
    if block_size is None:
        _require_whole_blocks(operator, k, blocks, names)
        block_size = k // blocks if blocks and k else 1
    what = f"an integer from 1 to {_LONGEST_BLOCK}"
    block_size = integer(operator, "block_size", block_size, range(1, _LONGEST_BLOCK + 1), what)
    _require_blocks(operator, k, blocks, block_size, names)
    return block_size


@once_for_each_signature
def _require_same_batch(operator: str, b: tuple[int, ...], b_scale: tuple[int, ...], names: tuple[str, str]) -> None:
    matrix, scale = names
    text = f"has shape {b_scale}, {matrix} has {b}: the batch dimensions must match"
    require(b[:-2] == b_scale[:-2], message(operator, scale, text))


@once_for_each_signature
def _require_whole_blocks(operator: str, k: int, blocks: int, names: tuple[str, str]) -> None:
    matrix, scale = names
    what = f"K, which is {k} in {matrix}, is not a multiple of the {blocks} blocks of {scale}"
    text = f"is None, but {what}: pass the number of rows in a block"
    require(k % blocks == 0 if blocks else k == 0, message(operator, "block_size", text))


@once_for_each_signature
def _require_blocks(operator: str, k: int, blocks: int, block_size: int, names: tuple[str, str]) -> None:
    matrix, scale = names
    wanted = -(-k // block_size)
    text = f"has {blocks} blocks; K, which is {k} in {matrix}, makes {wanted} blocks of block_size {block_size}"
    require(blocks == wanted, message(operator, scale, text))


def require_block_size(operator: str, block_size: int | None, b: PackedBlockMatrix) -> None:
    """Asserts that a block size given beside packed weights is their own."""
    if block_size is None:
        return
    what = f"None, or {b.block_size}, the block size of the packed b"
    integer(operator, "block_size", block_size, (b.block_size,), what)


def k_parts_of(operator: str, k_parts: int, blocks: int) -> int:
    """The number of runs in which the blocks are summed, asserting that these are alike and can be added in pairs."""
    what = f"a power of two that divides the number of blocks, which is {blocks}" if blocks != 0 else "1, without any blocks"
    parts = integer(operator, "k_parts", k_parts, range(1, sys.maxsize), what)
    _require_parts(operator, parts, blocks, what)
    return parts


@once_for_each_signature
def _require_parts(operator: str, k_parts: int, blocks: int, what: str) -> None:
    is_power = k_parts & (k_parts - 1) == 0
    fits = is_power and blocks % k_parts == 0 if blocks != 0 else k_parts == 1
    require(fits, message(operator, "k_parts", f"is {k_parts}; it must be {what}"))


def require_rows(operator: str, a: Shaped, columns: Mapping[str, Shaped | None]) -> None:
    """Asserts that no per-row operand in `columns`, a dict by name, has a larger batch than `a`."""
    for name, column in columns.items():
        if column is not None and len(column.shape) > 2:
            _require_batch(operator, a.shape, name, column.shape)


@once_for_each_signature
def _require_batch(operator: str, a: tuple[int, ...], name: str, column: tuple[int, ...]) -> None:
    batch = aligned(column[:-2], len(a) - 2)
    text = f"has shape {column}, a has {a}: each batch size must be 1 or that of a"
    require(broadcasts(batch, a[:-2]), message(operator, name, text))


def require_none(operator: str, beside: Mapping[str, object]) -> None:
    """Asserts that nothing is given, by its name, that packed weights already hold."""
    for name, value in beside.items():
        _require_none(operator, name, value is None)


@once_for_each_signature
def _require_none(operator: str, name: str, is_none: bool) -> None:
    require(is_none, message(operator, name, "is given with packed weights, which hold their own: pass None"))


def zero_point_of_blocks(
    call: Call, tensor: str, zero_point: ArrayLike | None, dtype: np.dtype, scale: Shaped
) -> tuple[Operand | None, dict[str, Shaped | None]]:
    """A zero point for each of the scales, or one for all, or None; and what it covers, by the name of its tensor."""
    name = call.descriptor.names(tensor).zero_point
    array = call.optional_one_or_more(name, zero_point, dtype)
    if array is None or array.shape != ():
        return array, {name: array}
    return array, {name: Signature(scale.shape, array.dtype)}
