"""How the Hopper kernel divides a product into tiles: configs are data, and choosing one is arithmetic.

The figures are those of an H200's data sheet and of the compiler; none of the estimates has been measured on the chip.
"""

import dataclasses
import math

MULTIPROCESSORS = 132
SHARED_MEMORY = 227 * 1024  # bytes that a block may have
ACCUMULATORS = 128  # registers of a thread; twice as many spill

SWIZZLE = 128  # bytes: the width of a tile in shared memory
PIECE_M = 64  # rows that one `wgmma` multiplies, and that the epilogue finishes at a time
ROW_ALIGNMENT = 8  # of M and N, which tiles in shared memory have 8 rows of
_OUTPUT_BUFFERS = 2
_OTHER_SHARED_MEMORY = 3 * 1024  # Mosaic's scratch, barriers and alignment
_MOST_STAGES = 12

# Multiply-accumulates, bytes from the L2 cache and bytes to memory, per multiprocessor and clock cycle.
_MULTIPLICATIONS, _BYTES_IN, _BYTES_OUT = 4096, 64, 20
_CYCLES_PER_TILE = 1500  # to fill the pipeline, and to leave it


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
      blocks: the blocks that run at a time, and share the tiles among them.
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
    """The config that takes the fewest cycles by the estimate, for (batch, m, k) x (batch, n, k) and this size of output."""
    tile = min(_TILES, key=lambda tile: (_cycles(*tile[:2], batch, m, n, k, itemsize), tile))
    block_m, block_n, warpgroups = tile
    config = TileConfig(
        block_m=block_m,
        block_n=block_n,
        stages=1,
        warpgroups=warpgroups,
        epilogue_n=min(block_n, SWIZZLE // itemsize),
    )
    step = shared_memory(dataclasses.replace(config, stages=2), itemsize) - shared_memory(config, itemsize)
    free = SHARED_MEMORY - shared_memory(config, itemsize)
    return dataclasses.replace(config, stages=min(1 + free // step, _MOST_STAGES))


# (block_m, block_n, warpgroups). The first is for large products. The narrow ones spread those with few rows, which
# are bound by reading B, over the whole chip.
_TILES = [
    (128, 256, 2),
    (256, 128, 2),
    (128, 128, 2),
    (64, 128, 1),
    (256, 64, 2),
    (128, 64, 2),
    (64, 64, 1),
    (256, 32, 2),
    (128, 32, 2),
    (64, 32, 1),
]


def _cycles(block_m: int, block_n: int, batch: int, m: int, n: int, k: int, itemsize: int) -> float:
    tiles = batch * math.ceil(m / block_m) * math.ceil(n / block_n)
    multiply = block_m * block_n * k / _MULTIPLICATIONS
    load = (min(block_m, m) + block_n) * k / _BYTES_IN
    store = min(block_m, m) * block_n * itemsize / _BYTES_OUT
    return math.ceil(tiles / MULTIPROCESSORS) * (max(multiply, load) + store + _CYCLES_PER_TILE)


def shared_memory(config: TileConfig, itemsize: int) -> int:
    """The bytes of shared memory that a block needs."""
    operands = config.stages * (config.block_m + config.block_n) * config.block_k
    outputs = config.warpgroups * output_buffers(config) * PIECE_M * config.epilogue_n * itemsize
    return operands + outputs + _OTHER_SHARED_MEMORY


def output_buffers(config: TileConfig) -> int:
    """The pieces of the output, for each warpgroup, of which one may be stored while the next is computed."""
    pieces = config.block_m // config.warpgroups // PIECE_M * (config.block_n // config.epilogue_n)
    return min(_OUTPUT_BUFFERS, pieces)


def accumulators(config: TileConfig) -> int:
    """The registers of a thread that hold the product."""
    return config.block_m // config.warpgroups * config.block_n // 128


def check(config: TileConfig, itemsize: int) -> None:
    """Raises ValueError for a config that the kernel cannot follow."""
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
