"""The size of the blocks of rows that share a scale, and the order of rows in them, in safetensors files of any format."""

from collections.abc import Collection

import numpy as np

from jquant.files.stored_tensor import StoredTensor

SCALES = ("float16", "bfloat16", "float32")

Tensors = dict[str, StoredTensor]


def block_size(scales: StoredTensor, k: int, blocks: int, configured: Collection[int], example: str) -> int:
    """The number of rows in a block: the configured one, or else the one that the number of scales implies.

    Args:
      scales: the tensor of scales, for errors.
      k: the rows of the weight, which are the columns of its transpose in the file.
      blocks: the number of blocks.
      configured: the sizes in the configuration, for some weights or for all; -1 stands for all rows.
      example: a configuration that sets a size, with "SIZE" in its place.

    Raises:
      CheckpointError: no configured size results in that number of blocks, or two of them do; or none is configured, and
        the number of blocks is ambiguous.
    """
    if not configured:
        return _implied_size(scales, k, blocks, example)
    fitting = fitting_sizes(k, blocks, configured)
    if not fitting:
        sizes = " or ".join(map(str, sorted(set(configured))))
        scales.refuse(f"has {blocks} rows, which do not fit {k} rows of the weight and a group_size of {sizes}")
    if len(fitting) > 1:
        sizes = " and ".join(map(str, fitting))
        scales.refuse(f"has {blocks} rows for {k} rows of the weight, which a group_size of each of {sizes} gives")
    return fitting[0]


def fitting_sizes(k: int, blocks: int, configured: Collection[int]) -> list[int]:
    """The configured sizes, at most `k`, that divide `k` rows into that many blocks."""
    sizes = {k if size == -1 else min(size, k) for size in configured}
    return sorted(size for size in sizes if -(-k // size) == blocks)


def _implied_size(scales: StoredTensor, k: int, blocks: int, example: str) -> int:
    """The size of the blocks where only their number is known.

    Several sizes may result in the same number of blocks, with a last block that is shorter. Writers use powers of two,
    mostly 32 to 128, so equal blocks of a power of two are accepted. Anything else would be a guess, unless only one size
    fits.
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


def activation_order(
    g_idx: StoredTensor, blocks_of_rows: np.ndarray, blocks: int, sizes: Collection[int]
) -> tuple[int, np.ndarray | None]:
    """The size of the blocks, and the permutation of rows that makes each block contiguous; None if the rows are in order.

    Args:
      g_idx: the tensor, for errors.
      blocks_of_rows: its elements, the block of each row.
      blocks: the number of blocks.
      sizes: the sizes that the configuration allows; any, if it is empty.

    Raises:
      CheckpointError: an index out of range, or blocks of a size that is not allowed, or of different sizes, which no packed
        matrix can have.
    """
    smallest, largest = blocks_of_rows.min(), blocks_of_rows.max()
    if smallest < 0 or largest >= blocks:
        g_idx.refuse(f"has indices from {smallest} to {largest}, but there are {blocks} blocks")
    counts = np.bincount(blocks_of_rows, minlength=blocks)
    if (counts[:-1] != counts[0]).any() or not 0 < counts[-1] <= counts[0]:
        g_idx.refuse(f"makes blocks of {counts.min()} to {counts.max()} rows; all but the last must be equally long")
    size = int(counts[0])
    if sizes and size not in sizes:
        g_idx.refuse(f"makes blocks of {size} rows, but {' or '.join(map(str, sizes))} are configured")
    if (np.diff(blocks_of_rows) >= 0).all():
        return size, None
    return size, np.argsort(blocks_of_rows, kind="stable").astype(np.int32)
