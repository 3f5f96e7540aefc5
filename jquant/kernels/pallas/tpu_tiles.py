"""Tile configs of the TPU kernel: which blocks of the matrices it holds at a time, by chip and shape."""

import dataclasses
import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

LANES = 128
ROWS = 32  # of int8 in one vector register, and so in one instruction of the matrix unit


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """The blocks of one grid step, and the vector memory for them.

    Attributes:
      block_m: a multiple of 32.
      block_k: a multiple of 128.
      block_n: a multiple of 128.
      rows_at_once: of the `block_m` rows, how many are multiplied and finished at once: a multiple of 32.
      vmem_limit_bytes: of the vector memory, what the kernel may use.
    """

    block_m: int
    block_k: int
    block_n: int
    rows_at_once: int
    vmem_limit_bytes: int


class Tile(NamedTuple):
    """The largest block of each dimension."""

    m: int
    k: int
    n: int


class Chip(NamedTuple):
    """What a config needs to know of a chip.

    Attributes:
      vmem_mebibytes: how much of the vector memory of one core the blocks may take.
      columns: of one matrix unit.
      rows_at_once: see `TileConfig`. Each time, B goes into the matrix units anew.
      tiles: the first that holds the whole of K, so that no sum goes through memory between two grid steps; or else
        the last.
      decode_tiles: likewise for few rows, where the time goes into reading B.
    """

    vmem_mebibytes: int
    columns: int
    rows_at_once: int
    tiles: tuple[Tile, ...]
    decode_tiles: tuple[Tile, ...]


_V5_TILES = (Tile(1024, 4096, 512), Tile(1024, 1024, 1024))
_DECODE_TILES = (Tile(256, 4096, 512), Tile(256, 2048, 1024))
# TPU 7x has no int8 unit: it multiplies in bfloat16 and sums a block of K in float32, which is exact up to 2**24, the
# sum of 1024 products of -128 and -128.
_FLOAT32_SUMS = Chip(40, 256, 1024, (Tile(1024, 1024, 1024),), (Tile(256, 1024, 2048),))
_CHIPS = {
    "v5e": Chip(96, 128, 256, _V5_TILES, _DECODE_TILES),
    "v5p": Chip(40, 128, 256, _V5_TILES, _DECODE_TILES),
    "v6e": Chip(96, 256, 256, (Tile(2048, 4096, 1024), Tile(2048, 1024, 2048)), _DECODE_TILES),
    "7": _FLOAT32_SUMS,
    "7x": _FLOAT32_SUMS,
    None: _FLOAT32_SUMS,  # exact, and small enough, on all of them
}
_WITHOUT_INT8 = ("v2", "v3", "v4", "v4i")
_MEBIBYTE = 2**20


def config_for(
    chip: str | None, m: int, k: int, n: int, output_dtype: np.dtype, leaves: tuple[tuple[int, int], ...] = ()
) -> TileConfig:
    """The config for an (M, K) by (K, N) product on a chip.

    Args:
      chip: "v5e", "v5p", "v6e", "7" or "7x"; None, if it is not known, gives a config that is right for each of them.
      m: the rows of A.
      k: the columns of A.
      n: the columns of B.
      output_dtype: what the kernel stores.
      leaves: the last two sizes of each array of the epilogue.

    Raises:
      NotImplementedError: there is no config for the chip.
    """
    require_configs(chip, _CHIPS)
    vmem_mebibytes, columns, rows_at_once, tiles, decode_tiles = _CHIPS[chip]
    tiles = decode_tiles if m <= decode_tiles[0].m else tiles
    tile = next((tile for tile in tiles if k <= tile.k), tiles[-1])
    blocks = Tile(split(m, tile.m, ROWS), min(round_up(k, LANES), tile.k), split(n, tile.n, columns))
    while (needed := _vmem_bytes(blocks, output_dtype, leaves)) > vmem_mebibytes * _MEBIBYTE:
        # The longer side shrinks, so that the blocks stay close to square, and little is read for them.
        m_is_longer = blocks.m > blocks.n
        longer = split(max(blocks.m, blocks.n), max(blocks.m, blocks.n) // 2, LANES)
        blocks = blocks._replace(m=longer) if m_is_longer else blocks._replace(n=longer)
    return TileConfig(*blocks, rows_at_once, vmem_limit_bytes=needed)


def require_configs(chip: str | None, chips: Collection[str | None]) -> None:
    """Raises NotImplementedError unless the chip is one of those that there are configs for."""
    if chip in _WITHOUT_INT8:
        raise NotImplementedError(f"TPU {chip} does not multiply int8 matrices in Pallas kernels; v5e and later ones do")
    if chip not in chips:
        raise NotImplementedError(f"there are no tile configs for TPU {chip}, only for {', '.join(filter(None, chips))}")


def _vmem_bytes(blocks: Tile, output_dtype: np.dtype, leaves: tuple[tuple[int, int], ...]) -> int:
    """Two buffers for each block, one of which is read or written meanwhile; the accumulator; and the compiler's own."""
    m, k, n = blocks
    leaf_bytes = sum(
        4 * round_up(m if rows > 1 else 1, 8) * round_up(n if columns > 1 else 1, LANES) for rows, columns in leaves
    )
    buffers = 2 * (m * k + k * n + m * n * output_dtype.itemsize + leaf_bytes)
    return buffers + 4 * m * n + 4 * _MEBIBYTE


def split(size: int, largest: int, multiple: int) -> int:
    """The block of at most `largest`, a multiple of `multiple`, that divides `size` most evenly."""
    return round_up(math.ceil(size / math.ceil(size / largest)), multiple)


def round_up(size: int, multiple: int) -> int:
    return math.ceil(size / multiple) * multiple
