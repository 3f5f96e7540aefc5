"""Rotations of the operands of quantized products."""

import numpy as np
from numpy import float32


def hadamard_transform(x, *, axis=-1, block_size=None):
    """Elements whose numbers differ in one bit are added and subtracted: first in the lowest bit, last in the highest."""
    x = np.asarray(x)
    size = x.shape[axis]
    block_size = block_size or max(1, size & -size)
    sums = np.moveaxis(x, axis, -1).astype(float32)
    sums = sums.reshape(*sums.shape[:-1], size // block_size, block_size)
    number, stages = np.arange(block_size), block_size.bit_length() - 1
    with np.errstate(over="ignore", invalid="ignore"):
        for stage in range(stages):
            other = sums[..., number ^ 2**stage]
            sums = np.where(number >> stage & 1, other - sums, sums + other)
        result = (sums * float32(2.0 ** -((stages + 1) // 2))).astype(x.dtype)
    return np.moveaxis(result.reshape(*result.shape[:-2], size), -1, axis)
