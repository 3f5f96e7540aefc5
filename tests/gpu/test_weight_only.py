"""Products of a few rows with weights of 4 bits, compiled for an H200: the weights are read as they are stored."""

import pytest

from benchmarks import gpu_products

pytest.importorskip("jax_plugins.xla_cuda13", reason="XLA compiles for NVIDIA GPUs only where jax-cuda13-pjrt is installed")

RATIOS = {
    "`matmul_n_bits`, 1 row": 1.05,
    "`matmul_n_bits`, 8 rows": 1.05,
    "`matmul_n_bits`, 1 row, packed `k_major`": 1.45,
    "`matmul_n_bits`, 1 row, packed": 4.25,
}


# All weights as floats would be 14 times the bytes of the operands and the result, and more.
@pytest.mark.parametrize(("name", "most"), [*RATIOS.items()])
def test_weights_are_read_as_they_are_stored(name, most):
    assert gpu_products.ratio("h200", name) <= most
