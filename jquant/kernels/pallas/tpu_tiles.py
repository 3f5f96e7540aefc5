"""Tile configurations of the TPU kernel, by chip and shape: the blocks of the matrices that it holds at a time."""

import dataclasses
import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

LANES = 128
ROWS = 32  # of int8 in one vector register, and so in one instruction of the matrix unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class TileConfig:
    """The blocks of one grid step, and the vector memory for them.

    Attributes:
      block_m: a multiple of 32.
      block_k: a multiple of 128.
      block_n: a multiple of 128.
      rows_at_once: how many of the `block_m` rows are multiplied, and go through the epilogue, at once: a multiple of 32.
      vmem_limit_bytes: how much of the vector memory the kernel may use.
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
    """The properties of a chip that decide its tile configurations.

    Attributes:
      vmem_mebibytes: how much of the vector memory of one core the blocks may take.
      columns: those of one matrix unit.
      rows_at_once: see `TileConfig`. Each time, B is loaded into the matrix units again.
      tiles: the candidates. The first that holds all of K is taken, so that no sum goes through memory between two grid
        steps, or else the last.
      decode_tiles: the candidates for few rows, where the time goes into reading B.
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
    None: _FLOAT32_SUMS,  # exact on every chip, and small enough for each
}
_WITHOUT_INT8 = ("v2", "v3", "v4", "v4i")
MEBIBYTE = 2**20
_INT8 = np.dtype(np.int8)


def config_for(
    chip: str | None,
    m: int,
    k: int,
    n: int,
    output_dtype: np.dtype,
    leaves: tuple[tuple[int, int], ...] = (),
    a_dtype: np.dtype = _INT8,
) -> TileConfig:
    """The tile configuration for an (M, K) by (K, N) product on a chip.

    Args:
      chip: "v5e", "v5p", "v6e", "7" or "7x"; None, if it is unknown: the configuration then fits each of them.
      m: the rows of A.
      k: the columns of A.
      n: the columns of B.
      output_dtype: the dtype that the kernel stores.
      leaves: the last two sizes of each array of the epilogue, and of the scale of A.
      a_dtype: that of A: floats become int8 in the kernel, which holds these for all of K.

    Raises:
      NotImplementedError: there are no tile configurations for the chip.
    """
    require_supported(chip, _CHIPS)
    chip_properties = _CHIPS[chip]
    tiles = chip_properties.decode_tiles if m <= chip_properties.decode_tiles[0].m else chip_properties.tiles
    tile = next((tile for tile in tiles if k <= tile.k), tiles[-1])
    block_k = min(round_up(k, LANES), tile.k)
    blocks = Tile(m=split(m, tile.m, ROWS), k=block_k, n=split(n, tile.n, chip_properties.columns))
    integers = 0 if a_dtype == _INT8 else round_up(k, block_k)
    while (
        needed := _vmem_bytes(blocks, output_dtype, leaves, a_dtype, integers)
    ) > chip_properties.vmem_mebibytes * MEBIBYTE:
        # The longer side is shortened, so that blocks stay close to square, for which little is read.
        m_is_longer = blocks.m > blocks.n
        longer = split(max(blocks.m, blocks.n), max(blocks.m, blocks.n) // 2, LANES)
        blocks = blocks._replace(m=longer) if m_is_longer else blocks._replace(n=longer)
    return TileConfig(
        block_m=blocks.m,
        block_k=blocks.k,
        block_n=blocks.n,
        rows_at_once=chip_properties.rows_at_once,
        vmem_limit_bytes=needed,
    )


def require_supported(chip: str | None, chips: Collection[str | None]) -> None:
    """Raises NotImplementedError unless the chip is one of `chips`, for which there are tile configurations."""
    if chip in _WITHOUT_INT8:
        raise NotImplementedError(f"TPU {chip} does not multiply int8 matrices in Pallas kernels; v5e and later ones do")
    if chip not in chips:
        supported = ", ".join(filter(None, chips))
        raise NotImplementedError(f"there are no tile configurations for TPU {chip}, only for {supported}")


def _vmem_bytes(
    blocks: Tile, output_dtype: np.dtype, leaves: tuple[tuple[int, int], ...], a_dtype: np.dtype, integers: int
) -> int:
    """Vector memory for two buffers of each block, one of which is loaded or stored; the accumulator; the compiler's own.

    And `integers` bytes for each row of A.
    """
    m, k, n = blocks
    leaf_bytes = sum(
        4 * round_up(m if rows > 1 else 1, 8) * round_up(n if columns > 1 else 1, LANES) for rows, columns in leaves
    )
    buffers = 2 * (m * k * a_dtype.itemsize + k * n + m * n * output_dtype.itemsize + leaf_bytes)
    return buffers + 4 * m * n + m * integers + 4 * MEBIBYTE


def split(size: int, largest: int, multiple: int) -> int:
    """The size of blocks, a multiple of `multiple`, that divide `size` most evenly into parts of at most `largest`."""
    return round_up(math.ceil(size / math.ceil(size / largest)), multiple)


def round_up(size: int, multiple: int) -> int:
    """The next multiple of `multiple`, from `size` on."""
    return math.ceil(size / multiple) * multiple
