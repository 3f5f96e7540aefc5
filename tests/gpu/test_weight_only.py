"""Products of a few rows with weights of 4 bits, compiled for an H200: the weights are read as they are stored."""

import jax
import jax.numpy as jnp
import pytest

import jquant
from benchmarks import chips, traffic

pytest.importorskip("jax_plugins.xla_cuda13", reason="XLA compiles for NVIDIA GPUs only where jax-cuda13-pjrt is installed")

SIZE, BLOCK = 4096, 32


def array(dtype, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


STORED = array(jnp.uint8, SIZE, SIZE // BLOCK, BLOCK // 2), array(jnp.float32, SIZE, SIZE // BLOCK)


def packed(k_major: bool) -> tuple[jquant.PackedBlockMatrix]:
    matrix, scale = array(jnp.int4, SIZE, SIZE), array(jnp.float32, SIZE // BLOCK, SIZE)
    return (jax.eval_shape(lambda matrix, scale: jquant.pack_matrix(matrix, scale=scale, k_major=k_major), matrix, scale),)


# How many times the bytes of the operands and the result: of all weights as floats, they would be 14 times and more.
@pytest.mark.parametrize(
    ("weights", "rows", "most"),
    [(STORED, 1, 1.05), (STORED, 8, 1.05), (packed(True), 1, 1.45), (packed(True), 8, 1.45), (packed(False), 1, 4.2)],
    ids=["stored, 1 row", "stored, 8 rows", "k_major, 1 row", "k_major, 8 rows", "packed, 1 row"],
)
def test_weights_are_read_as_they_are_stored(weights, rows, most):
    program = chips.compile("h200", jquant.matmul_n_bits, array(jnp.float32, rows, SIZE), *weights)
    moves = traffic.read(program.as_text())
    assert moves.ratio <= most, moves.instructions
