"""Arguments of products with block scales: the blocks and how they are summed, and what is given beside either matrix."""

import sys
from collections.abc import Mapping

import numpy as np
from jax.typing import ArrayLike

from jquant.arguments.call import Call
from jquant.arguments.descriptor import Shaped, Signature, require
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
    *batch, k, _ = b.shape
    *scale_batch, blocks, _ = b_scale.shape
    message = f"{operator}: {names[1]} has shape {b_scale.shape}, {names[0]} has {b.shape}: the batch dimensions must match"
    require(batch == scale_batch, message)
    if block_size is None:
        known = k % blocks == 0 if blocks else k == 0
        message = (
            f"{operator}: block_size is None, but K, which is {k} in {names[0]}, is not a multiple of the {blocks} blocks"
        )
        require(known, f"{message} of {names[1]}: pass the number of rows in a block")
        block_size = k // blocks if blocks and k else 1
    what = f"an integer from 1 to {_LONGEST_BLOCK}"
    block_size = integer(operator, "block_size", block_size, range(1, _LONGEST_BLOCK + 1), what)
    needed = -(-k // block_size)
    has, needs = (
        f"{names[1]} has {blocks} blocks",
        f"K, which is {k} in {names[0]}, makes {needed} blocks of block_size {block_size}",
    )
    require(blocks == needed, f"{operator}: {has}; {needs}")
    return block_size


def require_block_size(operator: str, block_size: int | None, b: PackedBlockMatrix) -> None:
    """Asserts that a block size given beside packed weights is their own."""
    if block_size is None:
        return
    what = f"None, or {b.block_size}, the block size of the packed b"
    integer(operator, "block_size", block_size, (b.block_size,), what)


def k_parts_of(operator: str, k_parts: int, blocks: int) -> int:
    """The number of runs in which the blocks are summed, asserting that these are alike and can be added in pairs."""
    what = f"a power of two that divides the number of blocks, which is {blocks}" if blocks != 0 else "1, without any blocks"
    found = integer(operator, "k_parts", k_parts, range(1, sys.maxsize), what)
    fits = found & (found - 1) == 0 and blocks % found == 0 if blocks != 0 else found == 1
    require(fits, f"{operator}: k_parts is {found}; it must be {what}")
    return found


def require_rows(operator: str, a: Shaped, columns: Mapping[str, Shaped | None]) -> None:
    """Asserts that no per-row operand in `columns`, a dict by name, has a larger batch than `a`."""
    for name, column in columns.items():
        if column is not None and len(column.shape) > 2:
            batch = aligned(column.shape[:-2], len(a.shape) - 2)
            message = f"{operator}: {name} has shape {column.shape}, a has {a.shape}: each batch size must be 1 or that of a"
            require(broadcasts(batch, a.shape[:-2]), message)


def require_none(operator: str, beside: Mapping[str, object]) -> None:
    """Asserts that nothing is given, by its name, that packed weights already hold."""
    for name, value in beside.items():
        require(value is None, f"{operator}: {name} is given with packed weights, which hold their own: pass None")


def zero_point_of_blocks(
    call: Call, tensor: str, zero_point: ArrayLike | None, dtype: np.dtype, scale: Shaped
) -> tuple[Operand | None, dict[str, Shaped | None]]:
    """A zero point for each of the scales, or one for all, or None; and what it covers, by the name of its tensor."""
    name = call.descriptor.names(tensor).zero_point
    found = call.optional_one_or_more(name, zero_point, dtype)
    if found is None or found.shape != ():
        return found, {name: found}
    return found, {name: Signature(scale.shape, found.dtype)}
