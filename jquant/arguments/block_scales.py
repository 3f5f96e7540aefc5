"""Blocks along one dimension of a tensor, and their scales."""

import sys

import numpy as np

from jquant.arguments.assertions import once_for_each_signature, require, require_data_type
from jquant.arguments.naming import message
from jquant.arguments.operands import Operand
from jquant.arguments.statics import integer
from jquant.modes import data_type_name


def positive_block_size(operator: str, block_size: int) -> int:
    return integer(operator, "block_size", block_size, range(1, sys.maxsize), "a positive integer")


def require_scales(operator: str, scale: Operand, dtype: np.dtype, values: Operand, axis: int, block_size: int) -> None:
    """Asserts that `scale` is of `dtype`, and has one element for each block of `values`."""
    require_data_type(operator, "scale", scale.dtype, (data_type_name(dtype),))
    _require_one_for_each_block(operator, scale.shape, values.shape, axis, block_size)


@once_for_each_signature
def _require_one_for_each_block(
    operator: str, scale: tuple[int, ...], values: tuple[int, ...], axis: int, block_size: int
) -> None:
    wanted = (*values[:axis], -(-values[axis] // block_size), *values[axis + 1 :])
    text = f"has shape {scale}, values {values}; with axis={axis} and block_size={block_size} it must be {wanted}"
    require(scale == wanted, message(operator, "scale", text))
