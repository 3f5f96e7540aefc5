"""Blocks along one dimension of a tensor, and their scales."""

import sys

import numpy as np

from jquant.arguments.descriptor import require
from jquant.arguments.operands import Operand
from jquant.arguments.statics import integer
from jquant.errors import DescriptorTypeError
from jquant.modes import data_type_name


def positive_block_size(operator: str, block_size: int) -> int:
    return integer(operator, "block_size", block_size, range(1, sys.maxsize), "a positive integer")


def require_scales(operator: str, scale: Operand, dtype: np.dtype, values: Operand, axis: int, block_size: int) -> None:
    """Asserts that `scale` is of `dtype`, and has one element for each block of `values`."""
    given, wanted = data_type_name(scale.dtype), data_type_name(dtype)
    require(given == wanted, f"{operator}: scale has data type {given}; it must be {wanted}", DescriptorTypeError)
    sizes = values.shape
    shape = (*sizes[:axis], -(-sizes[axis] // block_size), *sizes[axis + 1 :])
    given = f"scale has shape {scale.shape}, values {sizes}"
    require(scale.shape == shape, f"{operator}: {given}; with axis={axis} and block_size={block_size} it must be {shape}")
