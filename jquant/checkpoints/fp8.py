"""Weights of 8-bit floats with a scale for each block of rows and columns, as in DeepSeek's and Qwen's checkpoints."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jquant.checkpoints.entry import Entry
from jquant.checkpoints.groups import SCALES
from jquant.checkpoints.weight import QuantizedWeight
from jquant.files.stored_tensor import StoredTensor

FLOATS = ("float8_e4m3fn", "float8_e5m2")
_DEFAULT_BLOCK = (128, 128)  # where no weight_block_size is configured, as in transformers


def fp8(weight: StoredTensor, scale: StoredTensor, config: Mapping[str, Any]) -> Entry:
    """A weight (..., N, K), and what its blocks are multiplied by, although it is called the inverse of the scale.

    Raises:
      CheckpointError: tensors that do not fit together, or the configured blocks.
    """
    if len(weight.shape) < 2:
        weight.refuse(f"has shape {weight.shape}; it must be a matrix, or a batch of them")
    *batch, n, k = weight.require(FLOATS, len(weight.shape)).shape
    scale.require((*SCALES, "float8_e8m0fnu"), len(scale.shape))
    rows, size = (n, k) if math.prod(scale.shape) == 1 else _block(scale, config)
    expected = *batch, -(-n // rows), -(-k // size)
    if math.prod(scale.shape) != 1 and scale.shape != expected:
        scale.refuse(f"has shape {scale.shape}; blocks of {rows} x {size} in {weight.shape} need {expected}")

    def read() -> QuantizedWeight:
        scales = scale.read()
        scales = scales.astype(np.float32) if scales.dtype.itemsize == 1 else scales
        scales = scales.reshape(expected if scale.shape == expected else (1,) * len(expected))
        by_row = scales if scales.shape[-2] == 1 else np.repeat(scales, rows, axis=-2)[..., :n, :]
        return QuantizedWeight(
            values=_transposed(weight.read()),
            scale=_transposed(by_row),
            zero_point=None,
            minimum=None,
            permutation=None,
            block_size=min(size, k),
        )

    return Entry(kind=f"fp8 in blocks, {weight.dtype.name}", nbytes=weight.nbytes + scale.nbytes, read=read)


def _transposed(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.swapaxes(-1, -2))


def _block(scale: StoredTensor, config: Mapping[str, Any]) -> tuple[int, int]:
    """The configured rows and columns that share a scale."""
    block = config.get("weight_block_size") or _DEFAULT_BLOCK
    if not isinstance(block, list | tuple) or len(block) != 2 or any(type(size) is not int or size <= 0 for size in block):
        scale.refuse(f"weight_block_size is {str(block)[:100]}; it must be two sizes, such as [128, 128]")
    rows, size = block
    return rows, size
