"""What the formats of safetensors files share: the blocks of rows that have a scale each, and the order of those rows."""

from collections.abc import Collection

import numpy as np

from jquant.checkpoints.stored import StoredTensor

SCALES = ("float16", "bfloat16", "float32")

Tensors = dict[str, StoredTensor]


def block_size(scales: StoredTensor, k: int, blocks: int, configured: Collection[int], example: str) -> int:
    """How many of `k` rows a block has: as configured, with -1 for all of them, or else as the number of scales says.

    Args:
      scales: their tensor, for errors.
      k: the rows of the weight, or the columns of its transpose in the file.
      blocks: how many of them there are.
      configured: the sizes that the configuration gives, for some weights or for all.
      example: how a configuration gives a size, with "SIZE" in its place.

    Raises:
      CheckpointError: no configured size gives that many blocks, or two of them do; or none is configured, and their number
        leaves it open.
    """
    if not configured:
        return _guessed(scales, k, blocks, example)
    found = fitting(k, blocks, configured)
    if not found:
        sizes = " or ".join(map(str, sorted(set(configured))))
        scales.refuse(f"has {blocks} rows, which do not fit {k} rows of the weight and a group_size of {sizes}")
    if len(found) > 1:
        sizes = " and ".join(map(str, found))
        scales.refuse(f"has {blocks} rows for {k} rows of the weight, which a group_size of each of {sizes} gives")
    return found[0]


def fitting(k: int, blocks: int, configured: Collection[int]) -> list[int]:
    """The configured sizes, at most `k`, that divide `k` rows into that many blocks."""
    sizes = {k if size == -1 else min(size, k) for size in configured}
    return sorted(size for size in sizes if -(-k // size) == blocks)


def _guessed(scales: StoredTensor, k: int, blocks: int, example: str) -> int:
    """The size of the blocks, where nothing but their number says it.

    Several sizes may give as many, with a last block that is shorter. Writers use powers of two, 32 to 128 for the most
    part: equal blocks of a power of two are taken to be right. Anything else would be a guess, unless only one size fits.
    """
    least, most = -(-k // blocks), -(-k // (blocks - 1)) - 1 if blocks > 1 else k
    if least > most:
        scales.refuse(f"has {blocks} scales for each {k} elements, which blocks of no size give")
    if blocks == 1:
        return k
    if least != most and (k % blocks or least & (least - 1)):
        power = 1 << (most.bit_length() - 1)
        example = example.replace("SIZE", str(power if power >= least else least))
        scales.refuse(
            f"has {blocks} scales for each {k} elements, which blocks of {least} to {most} give, and no group_size is "
            f"configured; say what it is, in config.json or as load(..., quantization_config={example})"
        )
    return least


def contiguous(g_idx: StoredTensor, index: np.ndarray, blocks: int, sizes: Collection[int]) -> tuple[int, np.ndarray | None]:
    """The size of the blocks, and the order of the rows that makes each block contiguous; None if they already are.

    Args:
      g_idx: the tensor, for errors.
      index: what it holds, the block of each row.
      blocks: how many there are.
      sizes: those that blocks may have according to the configuration; any, if there are none.

    Raises:
      CheckpointError: an index out of range, blocks of another size, or of different sizes, which no packed matrix can have.
    """
    if index.min() < 0 or index.max() >= blocks:
        g_idx.refuse(f"has indices from {index.min()} to {index.max()}, but there are {blocks} blocks")
    found = np.bincount(index, minlength=blocks)
    if (found[:-1] != found[0]).any() or not 0 < found[-1] <= found[0]:
        g_idx.refuse(f"makes blocks of {found.min()} to {found.max()} rows; all but the last must be equally long")
    size = int(found[0])
    if sizes and size not in sizes:
        g_idx.refuse(f"makes blocks of {size} rows, but {' or '.join(map(str, sizes))} are configured")
    if (np.diff(index) >= 0).all():
        return size, None
    return size, np.argsort(index, kind="stable").astype(np.int32)
