"""The Hopper kernel for block scales without a GPU and without CUDA: operands, lowering, tile configurations, layouts."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in

import jquant
from jquant.arithmetic import exact
from jquant.kernels import xla_blocks
from jquant.kernels.pallas import gpu_block_tiles, gpu_blocks, hopper
from jquant.kernels.pallas.gpu_block_tiles import BLOCK_SIZES, BlockTileConfig, config_for, steps_for

from . import mapped_operands, mosaic_gpu_block_cases
from .mosaic_gpu_block_cases import CASES, Case
from .mosaic_gpu_cases import differences


def kernel_in_xla(a, b, scale, terms, out_type, steps, config, interpret):
    """What the kernel computes from padded operands, in its place."""
    batch, n, m = out_type.shape
    assert a.dtype == jnp.int8
    assert b.dtype in (jnp.int4, jnp.int8)
    assert (b.shape[1], m % config.epilogue_m) == (n, 0)
    assert a.shape[1] % 8 == n % 8 == b.shape[2] % steps.step_k == 0
    blocks = b.shape[2] // steps.step_k * steps.blocks
    assert a.shape[2] == b.shape[2] * steps.parts
    assert {x.shape[1] for x in (scale, *jax.tree.leaves(terms))} == {blocks}
    assert {x.shape[2] % 8 for x in (scale, *jax.tree.leaves(terms))} == {0}
    size = max(steps.step_k // steps.blocks, steps.depth)  # the columns of A that are multiplied for a block
    # Beyond the rows of A, TMA loads zeros.
    a, *rows = (jnp.pad(x, ((0, 0), (0, m), (0, 0)))[:, :m] for x in (a, *(jnp.swapaxes(x, 1, 2) for x, _ in terms)))
    terms = [(jnp.swapaxes(x, 1, 2), columns) for x, (_, columns) in zip(rows, terms, strict=True)]
    total = jnp.full(out_type.shape, -0.0, jnp.float32)
    for block in range(blocks):
        place = block // steps.parts * size
        weights = b[:, :, place : place + size].astype(jnp.int8)
        activations = a[:, :, block * size : (block + 1) * size]
        both = (jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in (weights, activations))
        sums = jnp.einsum("bnk,bmk->bnm", *both, preferred_element_type=jnp.int32)
        for rows, columns in terms:
            sums = sums - columns[:, block, :n, None] * rows[:, block, None, :m]
        total = exact.sum(total, exact.product(sums.astype(jnp.float32), scale[:, block, :n, None]))
    return total


@one_in(5, "case", CASES, ids=lambda case: case.name)
def test_operands_of_the_kernel(monkeypatch, case):
    monkeypatch.setattr(gpu_blocks, "_call", kernel_in_xla)
    actual, expected = mosaic_gpu_block_cases.result(case), mosaic_gpu_block_cases.expected(case)
    assert differences(*map(mosaic_gpu_block_cases.comparable, (actual, expected))) == []


@pytest.mark.gate
def test_each_operand_mapped_alone(monkeypatch):
    """By `jax.vmap`: the kernel gets one batch of A and one of B."""
    monkeypatch.setattr(gpu_blocks, "_call", kernel_in_xla)
    drawn = mosaic_gpu_block_cases.operands(Case("mapped", 3, 90, 10, 64, "uint4", True, "uint8", True))
    outputs, expected = (
        mapped_operands.outputs(monkeypatch, module.block_dot, (drawn.a, drawn.a_zero_point, drawn.packed(64)))
        for module in (gpu_blocks, xla_blocks)
    )
    for output, expected_output in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output, expected_output)


# ---------------------------------------------------------------------------------------------------------------------
# Lowering, which checks shapes, layouts and shared memory.


def lowered(case: Case, platform="cuda", k_parts=1) -> str:
    """The operator's program for prepacked weights, with the kernel asked for."""
    drawn = mosaic_gpu_block_cases.operands(case)
    matrix = drawn.packed(case.block_size, k_major=case.k_major)
    rank = drawn.a.ndim

    def function(a, a_zero_point, matrix):
        scale = jnp.ones((1,) * rank, jnp.float32)
        options = {"k_parts": k_parts, "implementation": "mosaic_gpu"}
        return jquant.block_scaled_matmul(a, scale, a_zero_point, matrix, **options)

    return jax.jit(function).trace(drawn.a, drawn.a_zero_point, matrix).lower(lowering_platforms=(platform,)).as_text()


@one_in(9, "case", CASES, first=1, ids=lambda case: case.name)
def test_the_operator_calls_the_kernel(case):
    assert lowered(case).count("stablehlo.custom_call @mosaic_gpu") == 1


def test_the_operator_calls_the_kernel_once_for_all_runs():
    case = Case("runs", 5, 512, 40, 64)
    assert lowered(case, k_parts=4).count("stablehlo.custom_call @mosaic_gpu") == 1


def test_k_major_weights_are_not_transposed():
    case = Case("order", 8, 256, 64, 64)
    assert "tensor<64x64xui16>" in lowered(case)
    for k_major, transposes in ((True, False), (False, True)):
        text = lowered(case._replace(k_major=k_major))
        assert ("ui16>) -> tensor<1x64x64xui16>" in "".join(x for x in text.splitlines() if "transpose" in x)) == transposes


def test_vectors_are_aligned_for_tma():
    """Vectors of few rows are loaded wider than they are, so that each begins at a multiple of 128 bytes."""
    for tile_m in (8, 16, 32, 64, 128):
        config = BlockTileConfig(tile_m=tile_m, warpgroups=1, stages=2, epilogue_m=8)
        assert config.loaded_m * 4 % 128 == config.tile_n * 4 % 128 == 0


# ---------------------------------------------------------------------------------------------------------------------
# What the kernel refuses.


@pytest.mark.parametrize("block_size", [8, 48, 96, 512])
def test_blocks_of_another_size(block_size):
    with pytest.raises(NotImplementedError, match=f"takes blocks of 16, 32, 64, 128, 256, not {block_size}"):
        lowered(Case("size", 8, 2 * block_size, 8, block_size))


def test_blocks_with_a_minimum():
    scale = np.ones((2, 8), np.float32)
    matrix = jquant.pack_matrix(np.ones((128, 8), jnp.uint4), scale=scale, minimum=scale)
    with pytest.raises(NotImplementedError, match="not with a minimum"):
        gpu_blocks.block_dot(jnp.ones((8, 128), jnp.int8), None, matrix)


def test_empty_matrices():
    with pytest.raises(NotImplementedError, match="does not multiply empty matrices"):
        lowered(Case("empty", 0, 64, 8, 64))


def test_symbolic_sizes():
    (m,) = jax.export.symbolic_shape("m")
    matrix, _ = mosaic_gpu_block_cases.matrix_and_rows(Case("symbolic", 1, 64, 8, 64))
    with pytest.raises(NotImplementedError, match="needs sizes that are known when it compiles"):
        jax.jit(gpu_blocks.block_dot).trace(jax.ShapeDtypeStruct((m, 64), jnp.int8), None, matrix)


def test_gpu_that_is_no_hopper(monkeypatch):
    monkeypatch.setattr(hopper, "compute_capability", lambda: "10.0")
    with pytest.raises(NotImplementedError, match=r"needs a GPU of compute capability 9.0 .*, but this one has 10.0"):
        lowered(Case("Blackwell", 8, 64, 8, 64))


def test_other_platforms():
    with pytest.raises(NotImplementedError, match="mosaic_gpu is for cuda; this program is for tpu"):
        lowered(Case("TPU", 8, 64, 8, 64), platform="tpu")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tile_m", 24, "tile_m must be one of"),
        ("tile_m", 128, "tile_m must be at most 64"),
        ("warpgroups", 3, "one or two warpgroups"),
        ("epilogue_m", 64, "epilogue_m must be 8, 16 or 32"),
        ("stages", 0, "must be positive"),
        ("stages", 30, "bytes of shared memory"),
    ],
)
def test_unsupported_tile_configurations(field, value, message):
    config = BlockTileConfig(tile_m=64, warpgroups=2, stages=4, epilogue_m=32)
    config = dataclasses.replace(config, **{field: value})
    with pytest.raises(ValueError, match=message):
        gpu_block_tiles.check(config, steps_for(128), 4, 2)


SIZES = (1, 8, 63, 200, 1000, 4096, 11008)


@pytest.mark.parametrize(("bits", "terms"), [*itertools.product((4, 8), (0, 1, 2))])
def test_every_tile_configuration_is_supported(bits, terms):
    for batch, m, n, k, block_size in itertools.product((1, 6), SIZES, SIZES, (64, 4096), BLOCK_SIZES):
        config = config_for(batch, m, n, k, block_size, bits, terms)
        gpu_block_tiles.check(config, steps_for(block_size), bits, terms)
        assert config.stages >= 2


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_few_rows_have_small_tiles(block_size):
    assert config_for(1, 1, 4096, 4096, block_size, 4, 0).tile_m == 8


# ---------------------------------------------------------------------------------------------------------------------
# The K-major layout, on every platform.

MATRICES = [*itertools.product(("int4", "uint4", "int8", "uint8"), (32, 7))]


def packed(dtype: str, block_size: int, *, k_major: bool) -> tuple[np.ndarray, jquant.PackedBlockMatrix]:
    """B, and B packed."""
    drawn = mosaic_gpu_block_cases.operands(Case("layout", 1, 70, 6, block_size, dtype, zero_point=True))
    return drawn.b, drawn.packed(block_size, k_major=k_major)


@pytest.mark.gate
@one_in(5, ("dtype", "block_size"), MATRICES)
def test_k_major_matrix_is_the_same_matrix(dtype, block_size):
    b, matrix = packed(dtype, block_size, k_major=True)
    _, other = packed(dtype, block_size, k_major=False)
    assert matrix.layout == f"k_major_{other.layout}"
    assert matrix.shape == other.shape == b.shape
    assert repr(matrix) == repr(other)
    matrix.validate("test")
    np.testing.assert_array_equal(matrix.unpack(), b)
    for actual, expected in ((matrix.n_minor(), other), (other.k_major(), matrix), (matrix.k_major(), matrix)):
        assert actual.layout == expected.layout
        np.testing.assert_array_equal(actual.data, expected.data)
    a = np.random.default_rng(0).integers(-128, 128, (3, b.shape[0]), np.int8)
    results = [jquant.block_scaled_matmul(a, np.float32(0.5), None, x) for x in (matrix, other)]
    np.testing.assert_array_equal(*results)


def test_words_of_k_major_matrices_hold_signed_integers():
    b = np.array([[-8, 1], [-1, 2], [0, 3], [7, 4]]).astype(jnp.int4)
    matrix = jquant.pack_matrix(b, scale=np.ones((1, 2), np.float32), k_major=True)
    np.testing.assert_array_equal(matrix.data, np.uint16([[0x70F8], [0x4321]]))


def test_shardings_of_k_major_matrices_follow_their_order():
    _, matrix = packed("int4", 32, k_major=True)
    shardings = matrix.sharding_for(jax.P("k", "n"))
    assert (shardings.data, shardings.scale, shardings.zero_point) == (jax.P("n", "k"), jax.P("k", "n"), jax.P("k", "n"))


def test_k_major_matrices_whose_sizes_do_not_fit_raise():
    _, matrix = packed("int4", 32, k_major=True)
    with pytest.raises(jquant.DescriptorError, match="do not fit blocks of 32"):
        dataclasses.replace(matrix, data=matrix.data.T).validate("test")


def test_k_major_without_scales_raises():
    with pytest.raises(jquant.DescriptorError, match="k_major is given without scale"):
        jquant.pack_matrix(np.ones((4, 4), np.int8), k_major=True)


def test_runs_of_k_major_matrices():
    drawn = mosaic_gpu_block_cases.operands(Case("runs", 3, 256, 6, 32))
    matrices = (jquant.pack_matrix(drawn.b, scale=drawn.scale, k_major=k_major) for k_major in (True, False))
    results = [jquant.block_scaled_matmul(drawn.a, np.float32(0.5), None, matrix, k_parts=4) for matrix in matrices]
    np.testing.assert_array_equal(*results)
