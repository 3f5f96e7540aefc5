"""Tile configurations of the Hopper kernel for block scales, chosen by an estimate of cycles that no chip has confirmed."""

import dataclasses
import itertools
import math

from jquant.kernels.pallas.gpu_tiles import (
    BYTES_IN,
    CYCLES_PER_TILE,
    MULTIPLICATIONS,
    MULTIPROCESSORS,
    OTHER_SHARED_MEMORY,
    PIECE_M,
    SHARED_MEMORY,
    SWIZZLE,
)

BLOCK_SIZES = (16, 32, 64, 128, 256)
_SHALLOWEST = 64  # the least depth that `wgmma` multiplies, with int8 in registers
_FEWEST_LOADED = 32  # elements of a 32-bit vector, so that each begins where TMA can store it
_MOST_STAGES = 8
_TILES_M, _WARPGROUPS = (8, 16, 32, 64, 128), (1, 2)

_OPERATIONS = 128  # of 32 bits, per multiprocessor and clock cycle
_CYCLES_PER_BLOCK = 150  # to wait for one product


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockTileConfig:
    """The tiles of one product.

    Attributes:
      tile_m: rows of A in a tile, from 8 to 128.
      warpgroups: those that multiply, each by 64 columns of B; one more loads.
      stages: steps of K that are in shared memory at a time.
      epilogue_m: rows of A whose results are stored at a time, at most 32.
      group_n: consecutive tiles along N, which share rows of A in the L2 cache.
      blocks: the blocks of threads that run at a time, and share the tiles among them.
    """

    tile_m: int
    warpgroups: int
    stages: int
    epilogue_m: int
    group_n: int = 8
    blocks: int = MULTIPROCESSORS

    @property
    def tile_n(self) -> int:
        return PIECE_M * self.warpgroups

    @property
    def loaded_m(self) -> int:
        """How many elements are loaded of a vector with one for each row of A."""
        return max(self.tile_m, _FEWEST_LOADED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
    """How K is traversed, which follows from the size of the blocks.

    Attributes:
      depth: what is multiplied at a time: a whole block, a part of it, or several.
      parts: how many blocks a `depth` has; each is multiplied with the others replaced by zeros.
      step_k: what is loaded at a time.
      blocks: how many blocks are loaded at a time.
    """

    depth: int
    parts: int
    step_k: int
    blocks: int


def steps_for(block_size: int) -> Steps:
    """How K is traversed for blocks of this size."""
    depth = min(max(block_size, _SHALLOWEST), SWIZZLE)
    step_k = max(block_size, SWIZZLE)
    return Steps(depth=depth, parts=max(depth // block_size, 1), step_k=step_k, blocks=step_k // block_size)


def config_for(batch: int, m: int, n: int, k: int, block_size: int, bits: int, terms: int) -> BlockTileConfig:
    """The tile configuration with the fewest estimated cycles, for (batch, m, k) x (batch, n, k).

    Args:
      batch: the number of products.
      m: the rows of A.
      n: the columns of B.
      k: the columns of A.
      block_size: the rows of B that share a scale.
      bits: of an element of B.
      terms: how many terms are subtracted from the product of a block: one for the zero points of B, one for those of A.
    """
    steps = steps_for(block_size)
    tiles = [tile for tile in itertools.product(_TILES_M, _WARPGROUPS) if tile[0] <= _largest_tile_m(steps, terms)]
    tile_m, warpgroups = min(tiles, key=lambda tile: (_cycles(*tile, batch, m, n, k, steps, bits, terms), tile))
    config = BlockTileConfig(tile_m=tile_m, warpgroups=warpgroups, stages=1, epilogue_m=min(tile_m, SWIZZLE // 4))
    step = shared_memory(dataclasses.replace(config, stages=2), steps, bits, terms) - shared_memory(
        config, steps, bits, terms
    )
    free = SHARED_MEMORY - shared_memory(config, steps, bits, terms)
    return dataclasses.replace(config, stages=min(1 + free // step, _MOST_STAGES))


def _largest_tile_m(steps: Steps, terms: int) -> int:
    """The most rows for whose sums, and the terms of zero points, a thread has registers."""
    return 128 if terms <= 1 and steps.parts == 1 else 64


def _cycles(tile_m: int, warpgroups: int, batch: int, m: int, n: int, k: int, steps: Steps, bits: int, terms: int) -> float:
    tile_n = PIECE_M * warpgroups
    blocks = k * steps.blocks / steps.step_k
    outputs = tile_m * tile_n
    multiply = outputs * k * steps.parts / MULTIPLICATIONS
    scale = blocks * (outputs * (3 + terms) / _OPERATIONS + _CYCLES_PER_BLOCK)
    load = (min(tile_m, m) * steps.parts + tile_n * bits / 8) * k / BYTES_IN
    # While one warpgroup scales, the other one multiplies.
    compute = max(multiply, scale) if warpgroups > 1 else multiply + scale
    tiles = batch * math.ceil(m / tile_m) * math.ceil(n / tile_n)
    return math.ceil(tiles / MULTIPROCESSORS) * (max(compute, load) + CYCLES_PER_TILE)


def shared_memory(config: BlockTileConfig, steps: Steps, bits: int, terms: int) -> int:
    """The bytes of shared memory that a block of threads needs."""
    integers = config.tile_m * steps.step_k * steps.parts + config.tile_n * steps.step_k * bits // 8
    vectors = 4 * steps.blocks * (config.tile_n * (1 + terms) + config.loaded_m * terms)
    outputs = config.warpgroups * output_buffers(config) * PIECE_M * config.epilogue_m * 4
    return config.stages * (integers + vectors) + outputs + OTHER_SHARED_MEMORY


def output_buffers(config: BlockTileConfig) -> int:
    """The buffers of each warpgroup for pieces of the output, one of which is stored while the next piece is computed."""
    return min(2, config.tile_m // config.epilogue_m)


def check(config: BlockTileConfig, steps: Steps, bits: int, terms: int) -> None:
    """Raises ValueError for a tile configuration that the kernel does not support."""
    needed, largest = shared_memory(config, steps, bits, terms), _largest_tile_m(steps, terms)
    conditions = {
        f"tile_m must be one of {_TILES_M}": config.tile_m in _TILES_M,
        f"tile_m must be at most {largest}, or registers spill": config.tile_m <= largest,
        "there must be one or two warpgroups that multiply": config.warpgroups in _WARPGROUPS,
        "epilogue_m must be 8, 16 or 32, and divide tile_m": config.epilogue_m in (8, 16, 32)
        and config.tile_m % config.epilogue_m == 0,
        "stages, group_n and blocks must be positive": min(config.stages, config.group_n, config.blocks) > 0,
        f"a thread block has {SHARED_MEMORY} bytes of shared memory, not {needed}": needed <= SHARED_MEMORY,
    }
    for condition, holds in conditions.items():
        if not holds:
            raise ValueError(f"{condition}: {config}")
