"""Tile configurations of the Hopper kernel, chosen by an estimate of its cycles.

The figures are from an H200's data sheet and from the compiler; none of the estimates has been measured on the chip.
"""

import dataclasses
import math
from typing import NamedTuple

MULTIPROCESSORS = 132
SHARED_MEMORY = 227 * 1024  # bytes that a block of threads may have
ACCUMULATORS = 128  # registers of a thread; twice as many spill

SWIZZLE = 128  # bytes: the width of a tile in shared memory
PIECE_M = 64  # rows that one `wgmma` multiplies, and that the epilogue finishes at a time
ROW_ALIGNMENT = 8  # of M and N: the rows of a tile in shared memory
_OUTPUT_BUFFERS = 2
OTHER_SHARED_MEMORY = 3 * 1024  # Mosaic's scratch, barriers and alignment
_MOST_STAGES = 12

# Per multiprocessor and clock cycle: multiply-accumulates, bytes from the L2 cache, and bytes to memory.
MULTIPLICATIONS, BYTES_IN, _BYTES_OUT = 4096, 64, 20
CYCLES_PER_TILE = 1500  # to fill the pipeline, and to drain it


@dataclasses.dataclass(frozen=True, kw_only=True)
class TileConfig:
    """The tiles of one product.

    Attributes:
      block_m: rows of A in a tile: 64 or 128 for each warpgroup.
      block_n: columns of B in a tile, at most 256.
      block_k: the depth of one step of the pipeline: 128.
      stages: steps that are in shared memory at a time.
      warpgroups: those that multiply, each a share of the rows; one more loads.
      epilogue_n: columns that the epilogue finishes and stores at a time: at most `SWIZZLE` bytes.
      group_m: consecutive tiles, one below the other, which share columns of B in the L2 cache.
      blocks: the blocks of threads that run at a time, and share the tiles among them.
    """

    block_m: int
    block_n: int
    block_k: int = SWIZZLE
    stages: int
    warpgroups: int
    epilogue_n: int
    group_m: int = 8
    blocks: int = MULTIPROCESSORS


def config_for(batch: int, m: int, n: int, k: int, itemsize: int) -> TileConfig:
    """The tile configuration with the fewest estimated cycles, for (batch, m, k) x (batch, n, k) and this size of output."""
    tile = min(_TILES, key=lambda tile: (_cycles(tile, batch, m, n, k, itemsize), tile))
    config = TileConfig(
        block_m=tile.block_m,
        block_n=tile.block_n,
        stages=1,
        warpgroups=tile.warpgroups,
        epilogue_n=min(tile.block_n, SWIZZLE // itemsize),
    )
    step = shared_memory(dataclasses.replace(config, stages=2), itemsize) - shared_memory(config, itemsize)
    free = SHARED_MEMORY - shared_memory(config, itemsize)
    return dataclasses.replace(config, stages=min(1 + free // step, _MOST_STAGES))


class _Tile(NamedTuple):
    """See `TileConfig`."""

    block_m: int
    block_n: int
    warpgroups: int


# The first is for large products. The narrow ones spread products of few rows, which are bound by reading B, over the chip.
_TILES = [
    _Tile(128, 256, 2),
    _Tile(256, 128, 2),
    _Tile(128, 128, 2),
    _Tile(64, 128, 1),
    _Tile(256, 64, 2),
    _Tile(128, 64, 2),
    _Tile(64, 64, 1),
    _Tile(256, 32, 2),
    _Tile(128, 32, 2),
    _Tile(64, 32, 1),
]


def _cycles(tile: _Tile, batch: int, m: int, n: int, k: int, itemsize: int) -> float:
    block_m, block_n, _ = tile
    tiles = batch * math.ceil(m / block_m) * math.ceil(n / block_n)
    multiply = block_m * block_n * k / MULTIPLICATIONS
    load = (min(block_m, m) + block_n) * k / BYTES_IN
    store = min(block_m, m) * block_n * itemsize / _BYTES_OUT
    return math.ceil(tiles / MULTIPROCESSORS) * (max(multiply, load) + store + CYCLES_PER_TILE)


def shared_memory(config: TileConfig, itemsize: int) -> int:
    """The bytes of shared memory that a block of threads needs."""
    operands = config.stages * (config.block_m + config.block_n) * config.block_k
    outputs = config.warpgroups * output_buffers(config) * PIECE_M * config.epilogue_n * itemsize
    return operands + outputs + OTHER_SHARED_MEMORY


def output_buffers(config: TileConfig) -> int:
    """The buffers of each warpgroup for pieces of the output, one of which is stored while the next piece is computed."""
    pieces = config.block_m // config.warpgroups // PIECE_M * (config.block_n // config.epilogue_n)
    return min(_OUTPUT_BUFFERS, pieces)


def accumulators(config: TileConfig) -> int:
    """The registers of a thread for the product."""
    return config.block_m // config.warpgroups * config.block_n // 128


def check(config: TileConfig, itemsize: int) -> None:
    """Raises ValueError for a tile configuration that the kernel does not support."""
    rows = config.block_m // config.warpgroups
    conditions = {
        "block_m must be 64 or 128 rows per warpgroup": rows * config.warpgroups == config.block_m and rows in (64, 128),
        "block_n must be 32, 64, 128 or 256": config.block_n in (32, 64, 128, 256),
        "block_k must be 128": config.block_k == SWIZZLE,
        "epilogue_n must divide block_n into rows of 32 to 128 bytes": config.block_n % config.epilogue_n == 0
        and config.epilogue_n * itemsize in (32, 64, SWIZZLE),
        "there must be one or two warpgroups that multiply": config.warpgroups in (1, 2),
        "stages, group_m and blocks must be positive": min(config.stages, config.group_m, config.blocks) > 0,
        f"a thread has at most {ACCUMULATORS} accumulators": accumulators(config) <= ACCUMULATORS,
        f"a thread block has {SHARED_MEMORY} bytes of shared memory": shared_memory(config, itemsize) <= SHARED_MEMORY,
    }
    for condition, holds in conditions.items():
        if not holds:
            raise ValueError(f"{condition}: {config} with outputs of {itemsize} bytes")
