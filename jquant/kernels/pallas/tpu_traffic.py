"""The bytes of high-bandwidth memory that the TPU kernel moves for its factors, by a model: nothing has been measured."""

import math

from jquant.kernels.pallas.tpu_tiles import LANES, TileConfig


def of_integers(config: TileConfig, m: int, k: int, n: int, float_bytes: int) -> int:
    """The bytes for A and B where XLA quantizes A: its floats are read, its integers written and read."""
    _, columns, sums = _steps(config, m, k, n)
    reads = columns if sums > 1 else 1
    return m * k * (float_bytes + 1 + reads) + _of_b(config, m, k, n)


def of_floats(config: TileConfig, m: int, k: int, n: int, float_bytes: int) -> int:
    """The bytes for A and B where the kernel quantizes A: its floats are read, and its scales, each in a row of memory."""
    return m * (k * float_bytes + 4 * LANES) + _of_b(config, m, k, n)


def _of_b(config: TileConfig, m: int, k: int, n: int) -> int:
    """All of B is read for each block of rows, unless it is one block, which stays."""
    rows, columns, sums = _steps(config, m, k, n)
    return k * n * (rows if columns * sums > 1 else 1)


def _steps(config: TileConfig, m: int, k: int, n: int) -> tuple[int, int, int]:
    """The blocks of M, N and K."""
    return math.ceil(m / config.block_m), math.ceil(n / config.block_n), math.ceil(k / config.block_k)
