"""Products with block scales, small enough to simulate. Run as a program, this simulates the Hopper kernel for them.

    python mosaic_gpu_block_cases.py CASE ...

prints what `mosaic_gpu_cases` prints.
"""

import dataclasses
import json
import sys
import zlib
from typing import Any, NamedTuple

import jax
import numpy as np
from kernels.block_operands import Operands, integers, padded
from kernels.mosaic_gpu_cases import differences

from benchmarks.device import simulator
from jquant.kernels.pallas import gpu_blocks
from jquant.kernels.pallas.gpu_block_tiles import BlockTileConfig
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.reference import blocks as reference

SMALL = BlockTileConfig(tile_m=8, warpgroups=1, stages=3, epilogue_m=8, group_n=1, blocks=2)
WIDE = BlockTileConfig(tile_m=64, warpgroups=2, stages=2, epilogue_m=16, group_n=2, blocks=3)
LARGE = BlockTileConfig(tile_m=128, warpgroups=2, stages=2, epilogue_m=32, blocks=2)
SINGLE_STAGE = BlockTileConfig(tile_m=32, warpgroups=1, stages=1, epilogue_m=32, blocks=1)


class Case(NamedTuple):
    """A, (M, K), by B, (K, N), in blocks; which of them have zero points; and the scale, if all are the same."""

    name: str
    m: int
    k: int
    n: int
    block_size: int
    dtype: str = "int4"
    zero_point: bool = False
    a_dtype: str = "int8"
    a_zero_point: bool = False
    batch: tuple[int, ...] = ()
    b_batch: tuple[int, ...] = ()
    k_major: bool = True
    config: BlockTileConfig | None = None
    scale: float | None = None


CASES = [
    Case("blocks of 128", 16, 384, 128, 128, config=SMALL),
    Case("blocks of 64", 8, 256, 64, 64),
    Case("blocks of 64, an odd number", 9, 320, 72, 64, config=SMALL),
    Case("zeros of either sign", 9, 192, 24, 64, scale=-0.0),
    Case("blocks of 32", 9, 160, 70, 32, zero_point=True),
    Case("blocks of 16", 3, 144, 65, 16, "uint4", config=SMALL),
    Case("blocks of 256", 5, 512, 40, 256, "uint4", zero_point=True, a_zero_point=True),
    Case("one block", 1, 64, 3, 64, a_zero_point=True),
    Case("ragged", 37, 300, 139, 128, zero_point=True, config=WIDE),
    Case("ragged, the other order", 37, 300, 139, 64, k_major=False, config=WIDE),
    Case("all zero points", 21, 250, 77, 64, "uint4", zero_point=True, a_dtype="uint8", a_zero_point=True),
    Case("all zero points of 128", 70, 250, 130, 128, "int4", zero_point=True, a_zero_point=True, config=WIDE),
    Case("unsigned without zero points", 21, 250, 77, 128, "uint4", a_dtype="uint8"),
    Case("large tiles", 150, 256, 200, 64, zero_point=True, config=LARGE),
    Case("single stage", 40, 512, 70, 64, config=SINGLE_STAGE),
    Case("int8", 21, 250, 77, 64, "int8"),
    Case("int8, blocks of 128", 21, 250, 77, 128, "int8", zero_point=True, k_major=False),
    Case("uint8", 21, 250, 77, 128, "uint8", zero_point=True, a_dtype="uint8", a_zero_point=True),
    Case("uint8, blocks of 32", 21, 90, 77, 32, "uint8"),
    Case("batch of A", 5, 128, 70, 64, zero_point=True, a_zero_point=True, batch=(2, 3), b_batch=(1, 1)),
    Case("batch of B", 5, 128, 70, 64, zero_point=True, a_zero_point=True, batch=(1,), b_batch=(3,)),
    Case("batches that broadcast", 5, 128, 30, 128, "uint4", batch=(2, 1), b_batch=(1, 2), a_zero_point=True),
]


def operands(case: Case) -> Operands:
    """Random integers; scales of either sign, with infinities and zeros."""
    random = np.random.default_rng(zlib.crc32(case.name.encode()))
    blocks = -(-case.k // case.block_size)
    a = integers(random, case.a_dtype, (*case.batch, case.m, case.k))
    b = integers(random, case.dtype, (*case.b_batch, case.k, case.n))
    scale = random.normal(size=(*case.b_batch, blocks, case.n)).astype(np.float32)
    scale = np.where(random.random(scale.shape) < 0.02, random.choice(np.float32([0, -0.0, np.inf]), scale.shape), scale)
    scale = scale if case.scale is None else np.full_like(scale, case.scale)
    a_zero_point = integers(random, case.a_dtype, (*case.batch, case.m, 1)) if case.a_zero_point else None
    b_zero_point = integers(random, case.dtype, scale.shape) if case.zero_point else None
    return Operands(a=a, a_zero_point=a_zero_point, b=b, scale=scale, b_zero_point=b_zero_point)


def expected(case: Case) -> np.ndarray:
    """The formula, in NumPy."""
    a, a_zero_point, b, scale, b_zero_point = operands(case)
    one = np.ones((1,) * a.ndim, np.float32)
    with np.errstate(all="ignore"):
        return reference.block_scaled_matmul(a, one, a_zero_point, b, scale, b_zero_point, block_size=case.block_size)


def matrix_and_rows(case: Case) -> tuple[PackedBlockMatrix, np.ndarray]:
    """B, and A in whole blocks, as the primitive hands them to a kernel."""
    drawn = operands(case)
    matrix = drawn.packed(case.block_size, k_major=case.k_major)
    return dataclasses.replace(matrix, padding=0), padded(drawn.a, drawn.a_zero_point, matrix.padding)


def result(case: Case, interpret: Any = None) -> np.ndarray:
    """The product by the Hopper kernel."""
    matrix, a = matrix_and_rows(case)

    @jax.jit
    def function(a, a_zero_point, b):
        return gpu_blocks.block_dot(a, a_zero_point, b, config=case.config, interpret=interpret)

    return np.asarray(function(a, operands(case).a_zero_point, matrix))


def comparable(x: np.ndarray) -> np.ndarray:
    """`x` with the same NaN for every NaN."""
    return np.where(np.isnan(x), np.float32(np.nan), x)


def simulate(names: list[str]) -> dict[str, list[str]]:
    """For each case, the differences between the simulated kernel and NumPy, or the exception."""
    simulator.take_operands_in_registers()
    reports = {}
    for case in (case for case in CASES if case.name in names):
        try:
            actual = result(case, simulator.parameters())
            reports[case.name] = differences(comparable(actual), comparable(expected(case)))
        except Exception as error:  # reported for its case
            reports[case.name] = [f"{type(error).__name__}: {error}"]
    return reports


if __name__ == "__main__":
    print(json.dumps(simulate(sys.argv[1:])))
