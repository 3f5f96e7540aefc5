"""Tile configurations of the TPU kernel for products with block scales, by chip, shape, and size of the blocks."""

import dataclasses
import math

from jquant.kernels.divisors import largest_divisor
from jquant.kernels.pallas.tpu_tiles import LANES, MEBIBYTE, ROWS, require_supported, round_up, split

FEW_ROWS = 8  # of int32 or float32 in one vector register
MOST_FEW_ROWS = 16
LARGEST_BLOCK = 1024  # sums of its products are exact in float32, in which TPU 7x computes them, and few enough to unroll


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockTileConfig:
    """The blocks of one grid step, and how they are multiplied.

    Attributes:
      block_m: rows of A: a multiple of 32, or of 8 where `stacked`.
      block_k: a multiple of `depth`.
      block_n: a multiple of 128.
      depth: how much of K goes through the matrix unit at a time: a multiple of the size of the blocks.
      columns_at_once: how many of the `block_n` columns are multiplied and scaled at once.
      stacked: whether the rows of A are stacked, once for each block of a `depth`, with the other blocks replaced by zeros,
        so that one pass gives the sums of all of these blocks.
      vmem_limit_bytes: how much of the vector memory the kernel may use.
    """

    block_m: int
    block_k: int
    block_n: int
    depth: int
    columns_at_once: int
    stacked: bool
    vmem_limit_bytes: int


_DEPTHS = {"v5e": 128, "v5p": 128, "v6e": 256, "7": 256, "7x": 256, None: 128}  # of the matrix unit


def config_for(chip: str | None, m: int, k: int, n: int, block_size: int, bits: int) -> BlockTileConfig:
    """The tile configuration for an (M, K) by (K, N) product on a chip.

    Args:
      chip: as `tpu_tiles.config_for` takes it; None, if it is unknown: the configuration then fits each chip.
      m: the rows of A.
      k: the columns of A.
      n: the columns of B.
      block_size: the rows of B that share a scale.
      bits: of an element of B.

    Raises:
      NotImplementedError: there are no tile configurations for the chip, or for blocks of this size.
    """
    require_supported(chip, _DEPTHS)
    depth = _DEPTHS[chip]
    if block_size % ROWS or (depth % block_size and block_size % LANES) or block_size > LARGEST_BLOCK:
        raise NotImplementedError(
            f"the TPU kernel takes blocks of 32, 64, and multiples of 128 up to {LARGEST_BLOCK}, not {block_size}"
        )
    depth = depth if depth % block_size == 0 else block_size
    stacked = m <= MOST_FEW_ROWS
    # Every block adds to the size of the program: 16 of them take the compiler 10 seconds.
    largest_k = 4096 if stacked else min(1024, 16 * block_size)
    block_k = _dividing(math.ceil(k / depth), max(largest_k // depth, 1)) * depth
    # With that depth, the products of 512 rows take hardly longer than loading and unpacking the weights for them.
    largest_m = 1024 if depth == 256 and block_size >= LANES else 512
    block_m = round_up(m, FEW_ROWS) if stacked else split(m, largest_m, ROWS)
    block_n = split(n, 512 if not stacked or block_k > 2048 else 1024, LANES)
    a_rows = block_m * (depth // block_size if stacked else 1)
    needed = _vmem_bytes(a_rows, block_m, block_k, block_n, block_size, bits)
    return BlockTileConfig(
        block_m=block_m,
        block_k=block_k,
        block_n=block_n,
        depth=depth,
        columns_at_once=512 if stacked else 256,
        stacked=stacked,
        vmem_limit_bytes=needed,
    )


def _dividing(count: int, largest: int) -> int:
    """The largest divisor of `count` up to `largest`; or `largest` itself, if all divisors are less than half of it.

    The kernel then has a separate program for the last part, which is smaller.
    """
    divisor = largest_divisor(count, largest)
    return divisor if 2 * divisor > largest or divisor == count else largest


def _vmem_bytes(a_rows: int, m: int, k: int, n: int, block_size: int, bits: int) -> int:
    """Vector memory for two buffers of each block, one of which is loaded or stored; unpacked B; the compiler's own.

    A has its zero points beside it, and those of B have 32 bits, if there are any.
    """
    buffers = 2 * (2 * a_rows * k + k * n * bits // 8 + 8 * n * round_up(k // block_size, 8) + 4 * m * n)
    return buffers + 5 * k * n + 4 * m * n + 12 * MEBIBYTE
