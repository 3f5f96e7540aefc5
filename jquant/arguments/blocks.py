"""Blocks of rows that share a scale and a zero point: how large a caller says that they are."""

import numpy as np
from jax.typing import ArrayLike

from jquant.arguments.call import Call
from jquant.arguments.descriptor import Shaped, Signature, require
from jquant.arguments.operands import Operand
from jquant.arguments.statics import integer

# The longest sum of products of bytes less their zero points that int32 holds: 255 * 255 * 2**15 is less than 2**31.
_LONGEST_BLOCK = 2**15


def block_size_of(operator: str, block_size: int | None, k: int, names: tuple[str, str], blocks: int) -> int:
    """`block_size`, or None for what follows from the sizes; asserting that K is so many blocks.

    Args:
      names: of the matrix and of its scales.
      blocks: how many scales there are along K.
    """
    b, b_scale = names
    if block_size is None:
        known = k % blocks == 0 if blocks else k == 0
        message = f"{operator}: block_size is None, but K, which is {k} in {b}, is no multiple of the {blocks} blocks"
        require(known, f"{message} of {b_scale}: it must say how many rows a block has")
        block_size = k // blocks if blocks and k else 1
    what = f"an integer from 1 to {_LONGEST_BLOCK}"
    block_size = integer(operator, "block_size", block_size, range(1, _LONGEST_BLOCK + 1), what)
    needed = -(-k // block_size)
    message = f"{operator}: {b_scale} has {blocks} blocks; K, which is {k} in {b}, has {needed} of block_size {block_size}"
    require(blocks == needed, message)
    return block_size


def zero_point_of_blocks(
    call: Call, tensor: str, zero_point: ArrayLike | None, dtype: np.dtype, scale: Operand
) -> tuple[Operand | None, dict[str, Shaped | None]]:
    """A zero point for each of the scales, or one for all, or None; and what it covers, by the name of its tensor."""
    name = call.descriptor.names(tensor).zero_point
    found = call.optional_tensor(name, zero_point, dtype)
    is_one_for_all = found is not None and found.shape == ()
    return found, {name: Signature(scale.shape, found.dtype) if is_one_for_all else found}
