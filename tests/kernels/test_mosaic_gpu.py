"""The Hopper kernel without a GPU and without CUDA: its operands, tile configurations, and lowering."""

import dataclasses
import itertools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from support.sampling import one_in

from jquant.arithmetic import exact
from jquant.kernels import epilogue, xla
from jquant.kernels.pallas import _compat, gpu, gpu_tiles, hopper
from jquant.kernels.pallas.gpu_tiles import TileConfig, config_for

from . import mosaic_gpu_cases
from .mosaic_gpu_cases import CASES, Case

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
BY_DEFAULT_OR_NOT = [*itertools.product(CASES, (False, True))]


def id_of(value: Case | bool) -> str:
    return value.name if isinstance(value, Case) else "as by default" if value else "as the case says"


@by_name
def test_reference_in_numpy_equals_xla(case):
    a, b, steps = jax.tree.map(jnp.asarray, mosaic_gpu_cases.operands(case))
    actual = jax.jit(xla.integer_dot, static_argnames="transpose_b")(a, b, steps, transpose_b=case.k_major)
    assert mosaic_gpu_cases.differences(np.asarray(actual), mosaic_gpu_cases.reference(case)) == []


# ---------------------------------------------------------------------------------------------------------------------
# Around the kernel: batches, padding, and the steps that are fused.


def kernel_in_xla(a, b, vectors, structure, roles, out_type, config, interpret):
    """What the kernel computes from padded operands, in its place."""
    batch, m, n = out_type.shape
    assert a.dtype == b.dtype == jnp.int8
    assert len(a) in (1, batch)
    assert len(b) in (1, batch)
    assert m == a.shape[1]
    assert m % 8 == 0
    assert b.shape[1] % 8 == 0
    assert n % config.epilogue_n == 0
    assert a.shape[2] == b.shape[2]
    assert a.shape[2] % config.block_k == 0
    product = jnp.einsum("bmk,bnk->bmn", *(jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in (a, b)), **INT32)
    product = jnp.pad(product, ((0, 0), (0, 0), (0, n - min(n, product.shape[2]))))[:, :, :n]
    tiles = {"scalar": (1, 1), "row": (config.block_m, m), "column": (config.block_n, n)}
    blocks = []
    for x, role in zip(vectors, roles, strict=True):
        tile, size = tiles[role]
        assert x.shape[1] % tile == 0
        assert x.shape[1] >= size or role == "column"  # the output may be padded further than B
        x = jnp.pad(x, ((0, 0), (0, max(0, size - x.shape[1]))))[:, :size]
        x = x[:, None, :] if role == "column" else x[:, :, None]
        blocks.append(jnp.broadcast_to(x, product.shape))
    return epilogue.apply(jax.tree.unflatten(structure, blocks), product)


INT32 = {"preferred_element_type": jnp.int32}


@one_in(5, ("case", "by_default"), BY_DEFAULT_OR_NOT, ids=id_of)
def test_operands_of_the_kernel(monkeypatch, case, by_default):
    monkeypatch.setattr(gpu, "_call", kernel_in_xla)
    actual = mosaic_gpu_cases.result(case._replace(config=None) if by_default else case)
    assert mosaic_gpu_cases.differences(actual, mosaic_gpu_cases.reference(case)) == []


def shapes_of_the_kernel(monkeypatch, case: Case) -> tuple:
    """The shapes of A and B, the roles and shapes of the vectors, and the shape and dtype of the output."""
    calls = []

    def record(a, b, vectors, structure, roles, out_type, config, interpret):
        calls.append((a.shape, b.shape, [(role, x.shape) for role, x in zip(roles, vectors, strict=True)], out_type))
        return jnp.zeros(out_type.shape, out_type.dtype)

    monkeypatch.setattr(gpu, "_call", record)
    mosaic_gpu_cases.result(case)
    ((*shapes, out_type),) = calls
    return (*shapes, (out_type.shape, out_type.dtype))


def test_batch_of_a_joins_its_rows(monkeypatch):
    case = Case("batch of A", (4, 16, 128), (1, 128, 32), (mosaic_gpu_cases.correction(("row", "column")),))
    vectors = [("row", (1, 64)), ("column", (1, 32))]
    assert shapes_of_the_kernel(monkeypatch, case) == ((1, 64, 128), (1, 32, 128), vectors, ((1, 64, 32), jnp.int32))


def test_operands_shared_by_a_batch_are_not_repeated(monkeypatch):
    case = Case("batch of B", (1, 16, 128), (3, 128, 32), (mosaic_gpu_cases.correction(("row", "batch column")),))
    vectors = [("row", (1, 64)), ("column", (3, 32))]
    assert shapes_of_the_kernel(monkeypatch, case) == ((1, 16, 128), (3, 32, 128), vectors, ((3, 16, 32), jnp.int32))


def test_steps_from_the_first_one_with_a_matrix_follow_the_kernel(monkeypatch):
    steps = (
        mosaic_gpu_cases.correction((None, "column")),
        mosaic_gpu_cases.dequantize("row", "column", "matrix", np.float32),
    )
    case = Case("matrix", (16, 128), (128, 32), steps)
    vectors = [("column", (1, 32))]
    assert shapes_of_the_kernel(monkeypatch, case) == ((1, 16, 128), (1, 32, 128), vectors, ((1, 16, 32), jnp.int32))


@one_in(
    9, ("grid", "group_m"), itertools.product([(1, 1), (1, 7), (7, 1), (8, 3), (9, 3), (16, 5), (3, 16)], [1, 2, 8]), first=3
)
def test_snake_visits_each_tile_once(grid, group_m):
    tiles = jnp.arange(math.prod(grid), dtype=jnp.int32)
    places = [place.tolist() for place in jax.vmap(lambda tile: hopper.snake(tile, grid, group_m))(tiles)]
    assert sorted(zip(*places, strict=True)) == list(itertools.product(*map(range, grid)))


# ---------------------------------------------------------------------------------------------------------------------
# What the kernel refuses.

INT8 = jnp.ones((8, 128), jnp.int8)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int16, jnp.float32])
@pytest.mark.parametrize("operand", [0, 1])
def test_operands_that_are_not_int8(dtype, operand):
    operands = [INT8, INT8]
    operands[operand] = operands[operand].astype(dtype)
    with pytest.raises(NotImplementedError, match="multiplies int8 by int8, not"):
        gpu.integer_dot(*operands, (), transpose_b=True)


@pytest.mark.parametrize("shape", [(0, 8, 128), (2, 0, 128), (2, 8, 0)])
def test_empty_matrices(shape):
    with pytest.raises(NotImplementedError, match="does not multiply empty matrices"):
        gpu.integer_dot(jnp.ones(shape, jnp.int8), jnp.ones((1, 8, shape[2]), jnp.int8), (), transpose_b=True)


def test_symbolic_sizes():
    (m,) = export.symbolic_shape("m")
    with pytest.raises(NotImplementedError, match="needs sizes that are known when it compiles"):
        jax.jit(gpu.integer_dot, static_argnames="transpose_b").trace(
            jax.ShapeDtypeStruct((m, 128), jnp.int8), INT8, (), transpose_b=True
        )


@pytest.mark.parametrize("capability", ["8.0", "8.9", "10.0", "12.0"])
def test_gpu_that_is_no_hopper(monkeypatch, capability):
    monkeypatch.setattr(hopper, "compute_capability", lambda: capability)
    with pytest.raises(
        NotImplementedError, match=f"needs a GPU of compute capability 9.0 .*, but this one has {capability}"
    ):
        gpu.integer_dot(INT8, INT8, (), transpose_b=True)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("block_m", 96, "block_m must be 64 or 128 rows per warpgroup"),
        ("block_m", 512, "block_m must be 64 or 128 rows per warpgroup"),
        ("block_n", 24, "block_n must be"),
        ("block_k", 64, "block_k must be 128"),
        ("epilogue_n", 64, "epilogue_n must divide block_n"),
        ("warpgroups", 4, "one or two warpgroups"),
        ("stages", 0, "must be positive"),
        ("stages", 5, "bytes of shared memory"),
    ],
)
def test_unsupported_tile_configurations(field, value, message):
    config = TileConfig(block_m=128, block_n=256, stages=4, warpgroups=2, epilogue_n=32)
    config = dataclasses.replace(config, **{field: value})
    if field == "warpgroups":
        config = dataclasses.replace(config, block_m=256)
    with pytest.raises(ValueError, match=message):
        gpu.integer_dot(INT8, INT8, (), transpose_b=True, config=config)


def test_tile_configuration_with_too_many_accumulators():
    config = TileConfig(block_m=256, block_n=256, stages=2, warpgroups=2, epilogue_n=32)
    with pytest.raises(ValueError, match="a thread has at most 128 accumulators"):
        gpu.integer_dot(INT8, INT8, (), transpose_b=True, config=config)


# ---------------------------------------------------------------------------------------------------------------------
# Tile configurations.

SIZES = (1, 8, 63, 64, 65, 100, 200, 512, 1000, 2048, 4096, 11008)


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_every_tile_configuration_is_supported(itemsize):
    for batch, m, n, k in itertools.product((1, 6), SIZES, SIZES, (1, 128, 4096)):
        config = config_for(batch, m, n, k, itemsize)
        gpu_tiles.check(config, itemsize)
        assert config == config_for(batch, m, n, k, itemsize)
        assert config.stages >= 4


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_large_products_have_large_tiles(itemsize):
    for m, n, k in [(2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 11008)]:
        config = config_for(1, m, n, k, itemsize)
        assert (config.block_m, config.block_n, config.block_k, config.stages, config.warpgroups) == (128, 256, 128, 4, 2)


@pytest.mark.parametrize("m", [1, 8, 16, 64])
def test_few_rows_are_spread_over_the_chip(m):
    for n in (2048, 4096, 11008):
        config = config_for(1, m, n, 4096, 2)
        assert config.block_m == 64  # B is read once
        tiles = math.ceil(n / config.block_n)
        assert tiles >= 64


# ---------------------------------------------------------------------------------------------------------------------
# Lowering, which checks shapes, layouts and shared memory.

STABLEHLO = {"int32": "i32", "int8": "i8", "uint8": "ui8", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@one_in(5, ("case", "by_default"), BY_DEFAULT_OR_NOT, first=1, ids=id_of)
def test_lowers_for_cuda(case, by_default):
    operands = mosaic_gpu_cases.operands(case)
    options = {"transpose_b": case.k_major, "config": None if by_default else case.config}
    traced = jax.jit(lambda *operands: gpu.integer_dot(*operands, **options)).trace(*operands)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    (call,) = [line for line in text.splitlines() if "stablehlo.custom_call @mosaic_gpu" in line]
    steps = [step for step in operands[2] if "matrix" not in case.name and "each element" not in case.name]
    dtype = next((step.dtype for step in steps if hasattr(step, "dtype")), np.dtype(np.int32))
    assert call.rstrip().endswith(f"x{STABLEHLO[dtype.name]}>")


def test_lowers_with_64_bit_types():
    with jax.enable_x64(True):
        traced = jax.jit(lambda a, b: gpu.integer_dot(a, b, (), transpose_b=True)).trace(INT8, INT8)
        assert "custom_call @mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_custom_derivatives_are_inlined_where_mosaic_does_not_lower_them():
    program = jax.make_jaxpr(_compat.inlined(exact.product))(jnp.float32(3), jnp.float32(5))
    has_custom = "custom_jvp_call" in str(program)
    assert has_custom == (jax.__version_info__ >= (0, 11))
    np.testing.assert_array_equal(_compat.inlined(exact.product)(jnp.float32(3), jnp.float32(5)), np.float32(15))


@pytest.mark.gate
def test_importing_jquant_does_not_import_the_kernel():
    program = "import sys, jquant; print([x for x in sys.modules if 'mosaic' in x and x.startswith('jquant')])"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert process.stdout.strip() == "[]"
