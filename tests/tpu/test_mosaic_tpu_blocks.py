"""The TPU kernel for block scales, compiled by libtpu for four chips: that it compiles, and its share of the int8 unit.

Needs libtpu, but no TPU. JAX_PLATFORMS=cpu keeps jax from seeking one.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from support.sampling import one_in

from benchmarks.chips import TPU_TOPOLOGIES
from jquant.kernels.pallas import tpu_blocks
from jquant.kernels.pallas.tpu_block_tiles import BlockTileConfig, config_for
from jquant.packed.block_matrix import Layout, PackedBlockMatrix

from . import bundles

pytest.importorskip("libtpu", reason="kernels compile for TPUs only where libtpu is installed")

CHIPS = tuple(TPU_TOPOLOGIES)
CLOCKS = {"v5e": 1.50e9, "v6e": 1.75e9}
BYTES_PER_SECOND = {"v5e": 820e9, "v6e": 1640e9}


class Compiled(NamedTuple):
    config: BlockTileConfig
    program: bundles.Program


@functools.cache
def compiled(
    chip: str, m: int, k: int, n: int, block_size: int, dtype="int4", *, zero_point=False, a_zero_point=False, batch=()
) -> Compiled:
    is_bytes = dtype in ("int8", "uint8")
    blocks = -(-k // block_size)
    rows = blocks * block_size // (1 if is_bytes else 4)

    def array(dtype, *shape):
        return jax.ShapeDtypeStruct((*batch, *shape), dtype)

    b = PackedBlockMatrix(
        data=array(jnp.int8 if is_bytes else jnp.uint16, rows, n),
        scale=array(jnp.float32, blocks, n),
        zero_point=array(jnp.uint8 if dtype.startswith("u") else jnp.int8, blocks, n) if zero_point else None,
        minimum=None,
        dtype=jnp.dtype(dtype),
        block_size=block_size,
        layout=Layout.BYTES if is_bytes else Layout.WORDS,
    )
    a = array(jnp.int8, m, blocks * block_size)
    config = config_for(chip, m, blocks * block_size, n, block_size, 8 if is_bytes else 4)
    dot = functools.partial(tpu_blocks.block_dot, config=config)
    a_zero_points = array(jnp.int8, m, 1) if a_zero_point else None
    return Compiled(config, bundles.compile(chip, dot, a, a_zero_points, b, kernel="block_dot"))


def assert_products_and_sums_are_not_fused(config: BlockTileConfig, program: bundles.Program) -> None:
    """Asserts that each register of a block's sums takes one float32 product and one sum, and no fused operation."""
    for body in program.bodies:
        assert not [name for name in body.instructions if any(fused in name for fused in ("fma", "mac", "mad", "muladd"))]
        assert body.count("vmul.f32") == body.count("vcvt.s32.f32")
        assert body.count("vadd.f32") >= body.count("vmul.f32") - config.block_m * config.block_n // 1024


@one_in(5, ("chip", "m", "dtype"), itertools.product(CHIPS, (1, 300), ("int4", "uint8")), others="full")
def test_compiles_with_ragged_blocks_and_all_zero_points(chip, m, dtype):
    program = compiled(chip, m, 1100, 520, 64, dtype, zero_point=True, a_zero_point=True, batch=(4,)).program
    unit = "vmatmul.mubr" if chip in ("v6e", "7x") else "vmatmul"
    dtype_name = "bf16" if chip == "7x" else "s8"
    assert program.bodies
    for body in program.bodies:
        products = [name for name in body.instructions if name.startswith("vmatmul")]
        assert products
        assert all(name.startswith(unit) and dtype_name in name.split(".") for name in products)


@pytest.mark.gate
@pytest.mark.parametrize("k", [32, 11008])
@one_in(3, "chip", CHIPS, others="full")
def test_compiles_for_one_row(chip, k):
    assert_products_and_sums_are_not_fused(*compiled(chip, 1, k, 4096, 32))


class Recorded(NamedTuple):
    """The programs of libtpu 0.0.42 and 0.0.50 for a product of 2048 rows by a matrix of 4096 rows and 2048 columns.

    Attributes:
      dtype: that of B.
      zero_points: whether B and A have them.
      share: the least percentage of the int8 unit's peak in the loop over K.
    """

    chip: str
    block_size: int
    dtype: str
    zero_points: tuple[bool, bool]
    share: float


NONE, B, A, BOTH = (False, False), (True, False), (False, True), (True, True)
PLAIN = [
    Recorded("v5e", 32, "int4", NONE, 24),
    Recorded("v5e", 64, "int4", NONE, 48),
    Recorded("v5e", 128, "int4", NONE, 97),
    Recorded("v5e", 256, "int4", NONE, 99),
    Recorded("v6e", 32, "int4", NONE, 6.9),
    Recorded("v6e", 64, "int4", NONE, 13.9),
    Recorded("v6e", 128, "int4", NONE, 29.5),
    Recorded("v6e", 256, "int4", NONE, 56),
]
OTHERS = [
    Recorded("v5e", 128, "uint4", B, 92),
    Recorded("v6e", 128, "uint4", B, 26),
    Recorded("v5e", 128, "uint4", A, 48),
    Recorded("v6e", 128, "uint4", A, 26),
    Recorded("v5e", 32, "uint4", BOTH, 23.5),
    Recorded("v6e", 128, "uint4", BOTH, 24),
    Recorded("v5e", 128, "int8", NONE, 95),
    Recorded("v5e", 128, "int8", B, 49),
    Recorded("v6e", 128, "int8", NONE, 30),
    Recorded("v6e", 128, "int8", B, 16),
]


@pytest.mark.gate
@pytest.mark.parametrize(
    "recorded",
    [*PLAIN, *(pytest.param(recorded, marks=pytest.mark.full) for recorded in OTHERS)],
    ids=lambda recorded: "-".join(map(str, recorded[:4])),
)
def test_share_of_the_int8_unit(recorded):
    chip, block_size, dtype, (zero_point, a_zero_point), share = recorded
    options = {"zero_point": zero_point, "a_zero_point": a_zero_point}
    config, program = compiled(chip, 2048, 4096, 2048, block_size, dtype, **options)
    cycles = config.block_m * config.block_k * config.block_n / bundles.PRODUCTS_PER_CYCLE[chip]
    assert share <= 100 * cycles / program.k_loop.bundles <= 1.1 * share
    if dtype != "int8" or not zero_point:
        assert_products_and_sums_are_not_fused(config, program)


@pytest.mark.gate
@one_in(2, ("chip", "zero_point"), [("v5e", False), ("v5e", True), ("v6e", False), ("v6e", True)], others="full")
def test_one_row_is_bound_by_reading_the_weights(chip, zero_point):
    """The loop over 4096 rows and columns of weights, in blocks of 32, takes less time than reading them.

    Except on v6e with zero points: the program of libtpu 0.0.42 takes 15 % longer, which is recorded here.
    """
    k = n = 4096
    config, program = compiled(chip, 1, k, n, 32, "uint4", zero_point=zero_point)
    assert len(program.bodies) == 1
    steps = k // config.block_k * n // config.block_n
    seconds = steps * (program.k_loop.bundles + program.pipeline) / CLOCKS[chip]
    read = (k * n / 2 + (5 if zero_point else 4) * k * n / 32) / BYTES_PER_SECOND[chip]
    assert seconds < read * (1.2 if chip == "v6e" and zero_point else 0.75)
