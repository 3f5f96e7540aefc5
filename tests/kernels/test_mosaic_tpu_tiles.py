"""Tile configurations of the TPU kernel: exact, within memory, and no larger than the matrices."""

import itertools

import numpy as np
import pytest

from benchmarks.shapes import PRODUCTS
from jquant.kernels.pallas.tpu_tiles import LANES, ROWS, config_for

CHIPS = ("v5e", "v5p", "v6e", "7", "7x", None)
VMEM_MEBIBYTES = {"v5e": 128, "v5p": 64, "v6e": 128, "7": 64, "7x": 64, None: 64}
SIZES = (1, 2, 31, 32, 33, 127, 128, 129, 255, 257, 300, 1000, 1024, 1025, 4096, 4097, 11008, 100_000)
SHAPES = [
    *itertools.product((1, 33, 300, 1025, 4096), SIZES, SIZES),
    *((size, 4096, 4096) for size in SIZES),
    *((product.m, product.k, product.n) for product in PRODUCTS),
]
LEAVES = {"none": lambda m, n: (), "vectors": lambda m, n: ((m, 1), (1, n)) * 2, "matrix": lambda m, n: ((m, n),)}


def configs(chip, dtype=np.int32, leaves="vectors"):
    for m, k, n in SHAPES:
        yield (m, k, n), config_for(chip, m, k, n, np.dtype(dtype), LEAVES[leaves](m, n))


@pytest.mark.parametrize("chip", CHIPS)
def test_blocks_are_whole_registers(chip):
    for _, config in configs(chip):
        assert config.block_m % ROWS == config.rows_at_once % ROWS == config.block_k % LANES == config.block_n % LANES == 0


@pytest.mark.parametrize("chip", CHIPS)
def test_blocks_are_no_larger_than_the_matrices_need(chip):
    for (m, k, n), config in configs(chip):
        assert config.block_m < m + ROWS
        assert config.block_k < k + LANES
        assert config.block_n < n + 256


@pytest.mark.parametrize("chip", CHIPS)
def test_blocks_share_the_rows_and_columns_evenly(chip):
    """The last block extends beyond the matrix by a register or two for each block, not by half a block."""
    for (m, _, n), config in configs(chip):
        for size, block, multiple in ((m, config.block_m, LANES), (n, config.block_n, 256)):
            count = -(-size // block)
            assert count * block - size < count * multiple


@pytest.mark.parametrize("chip", ["7", "7x", None])
def test_sums_in_float32_are_exact(chip):
    """The sum of 1024 products of -128 and -128 is 2**24, up to which float32 represents every integer."""
    for _, config in configs(chip):
        assert config.block_k <= 1024


@pytest.mark.parametrize("leaves", LEAVES)
@pytest.mark.parametrize("dtype", [np.int8, np.int32])
@pytest.mark.parametrize("chip", CHIPS)
def test_memory_suffices(chip, dtype, leaves):
    for (m, _, n), config in configs(chip, dtype, leaves):
        operands = (config.block_m + config.block_n) * config.block_k
        output = config.block_m * config.block_n * np.dtype(dtype).itemsize
        bias = 4 * config.block_m * config.block_n if leaves == "matrix" and min(m, n) > 1 else 0
        assert 2 * (operands + output + bias) < config.vmem_limit_bytes < VMEM_MEBIBYTES[chip] * 2**20 * 0.8


@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
def test_k_up_to_4096_is_one_block(chip):
    assert config_for(chip, 4096, 4096, 4096, np.dtype(np.int32)).block_k == 4096
    assert config_for(chip, 1, 4096, 4096, np.dtype(np.int32)).block_k == 4096


@pytest.mark.parametrize("chip", CHIPS)
def test_few_rows_have_blocks_of_mebibytes_of_b(chip):
    config = config_for(chip, 1, 8192, 8192, np.dtype(np.float32))
    assert config.block_m == ROWS
    assert 2**20 <= config.block_k * config.block_n <= 2**22


@pytest.mark.parametrize("chip", ["v2", "v3", "v4", "v4i"])
def test_chips_without_an_int8_unit_raise(chip):
    with pytest.raises(NotImplementedError, match=f"TPU {chip} does not multiply int8"):
        config_for(chip, 8, 8, 8, np.dtype(np.int32))


def test_chips_without_tiles_raise():
    with pytest.raises(NotImplementedError, match="no tile configurations for TPU 8i, only for v5e, v5p"):
        config_for("8i", 8, 8, 8, np.dtype(np.int32))
