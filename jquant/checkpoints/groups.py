"""What the formats of safetensors files share: the blocks of rows that have a scale each, and the order of those rows."""

import numpy as np

from jquant.checkpoints.stored import StoredTensor

SCALES = ("float16", "bfloat16", "float32")

Tensors = dict[str, StoredTensor]


def block_size(scales: StoredTensor, k: int, blocks: int, configured: int | None) -> int:
    """How many of `k` rows a block has: as configured, with -1 for all of them, or else `k` in equal parts.

    Raises:
      CheckpointError: the number of scales does not fit.
    """
    if configured is None:
        if k % blocks:
            scales.refuse(f"has {blocks} rows, which do not divide the {k} rows of the weight; no group_size is configured")
        return k // blocks
    size = k if configured == -1 else min(configured, k)
    if -(-k // size) != blocks:
        scales.refuse(f"has {blocks} rows, which do not fit {k} rows of the weight and a group_size of {configured}")
    return size


def contiguous(g_idx: StoredTensor, blocks: int) -> tuple[int, np.ndarray | None]:
    """The size of the blocks, and the order of the rows that makes each block contiguous; None if they already are.

    Raises:
      CheckpointError: an index out of range, or blocks of different sizes, which no packed matrix can have.
    """
    index = g_idx.read()
    if index.min() < 0 or index.max() >= blocks:
        g_idx.refuse(f"has indices from {index.min()} to {index.max()}, but there are {blocks} blocks")
    sizes = np.bincount(index, minlength=blocks)
    if (sizes[:-1] != sizes[0]).any() or not 0 < sizes[-1] <= sizes[0]:
        g_idx.refuse(f"makes blocks of {sizes.min()} to {sizes.max()} rows; all but the last must be equally long")
    if (np.diff(index) >= 0).all():
        return int(sizes[0]), None
    return int(sizes[0]), np.argsort(index, kind="stable").astype(np.int32)
