"""Tile plans: exact, within memory, and no larger than the matrices."""

import itertools

import numpy as np
import pytest

from jquant.kernels.pallas.tpu_plans import LANES, ROWS, plan_for

CHIPS = ("v5e", "v5p", "v6e", "7", "7x", None)
VMEM_MEBIBYTES = {"v5e": 128, "v5p": 64, "v6e": 128, "7": 64, "7x": 64, None: 64}
SIZES = (1, 2, 31, 32, 33, 127, 128, 129, 255, 257, 300, 1000, 1024, 1025, 4096, 4097, 11008, 100_000)
SHAPES = [*itertools.product((1, 33, 300, 1025, 4096), SIZES, SIZES), *((size, 4096, 4096) for size in SIZES)]
LEAVES = {"none": lambda m, n: (), "vectors": lambda m, n: ((m, 1), (1, n)) * 2, "matrix": lambda m, n: ((m, n),)}


def plans(chip, dtype=np.int32, leaves="vectors"):
    for m, k, n in SHAPES:
        yield (m, k, n), plan_for(chip, m, k, n, np.dtype(dtype), LEAVES[leaves](m, n))


@pytest.mark.parametrize("chip", CHIPS)
def test_blocks_are_whole_registers(chip):
    for _, plan in plans(chip):
        assert plan.block_m % ROWS == plan.rows_at_once % ROWS == plan.block_k % LANES == plan.block_n % LANES == 0


@pytest.mark.parametrize("chip", CHIPS)
def test_blocks_are_no_larger_than_the_matrices_need(chip):
    for (m, k, n), plan in plans(chip):
        assert plan.block_m < m + ROWS
        assert plan.block_k < k + LANES
        assert plan.block_n < n + 256


@pytest.mark.parametrize("chip", CHIPS)
def test_blocks_share_the_rows_and_columns_evenly(chip):
    """What the last block sticks out of the matrix is a register or two of each block, not half of one block."""
    for (m, _, n), plan in plans(chip):
        for size, block, multiple in ((m, plan.block_m, LANES), (n, plan.block_n, 256)):
            count = -(-size // block)
            assert count * block - size < count * multiple


@pytest.mark.parametrize("chip", ["7", "7x", None])
def test_sums_in_float32_are_exact(chip):
    """1024 products of -128 and -128 make 2**24, the largest of the integers that float32 holds without a gap."""
    for _, plan in plans(chip):
        assert plan.block_k <= 1024


@pytest.mark.parametrize("leaves", LEAVES)
@pytest.mark.parametrize("dtype", [np.int8, np.int32])
@pytest.mark.parametrize("chip", CHIPS)
def test_memory_suffices(chip, dtype, leaves):
    for (m, _, n), plan in plans(chip, dtype, leaves):
        operands = (plan.block_m + plan.block_n) * plan.block_k
        output = plan.block_m * plan.block_n * np.dtype(dtype).itemsize
        bias = 4 * plan.block_m * plan.block_n if leaves == "matrix" and min(m, n) > 1 else 0
        assert 2 * (operands + output + bias) < plan.vmem_limit_bytes < VMEM_MEBIBYTES[chip] * 2**20 * 0.8


@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
def test_the_whole_of_k_is_one_block_up_to_4096(chip):
    assert plan_for(chip, 4096, 4096, 4096, np.dtype(np.int32)).block_k == 4096
    assert plan_for(chip, 1, 4096, 4096, np.dtype(np.int32)).block_k == 4096


@pytest.mark.parametrize("chip", CHIPS)
def test_blocks_of_few_rows_are_mebibytes_of_b(chip):
    plan = plan_for(chip, 1, 8192, 8192, np.dtype(np.float32))
    assert plan.block_m == ROWS
    assert 2**20 <= plan.block_k * plan.block_n <= 2**22


@pytest.mark.parametrize("chip", ["v2", "v3", "v4", "v4i"])
def test_chips_without_an_int8_unit_raise(chip):
    with pytest.raises(NotImplementedError, match=f"TPU {chip} does not multiply int8"):
        plan_for(chip, 8, 8, 8, np.dtype(np.int32))


def test_chips_without_plans_raise():
    with pytest.raises(NotImplementedError, match="no tile plans for TPU 8i, only for v5e, v5p"):
        plan_for("8i", 8, 8, 8, np.dtype(np.int32))
