"""The TPU kernel for block scales: interpreted, against the formula in NumPy, and lowered for TPUs, without a TPU."""

import dataclasses
import functools
import itertools
import zlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P
from support.sampling import one_in

import jquant
from jquant.kernels import xla_blocks
from jquant.kernels.pallas import tpu_blocks
from jquant.kernels.pallas.tpu_block_tiles import BlockTileConfig, config_for
from jquant.reference import blocks as reference

from . import mapped_operands
from .block_operands import Operands, integers, padded

CHIPS = ("v5e", "v5p", "v6e", "7", "7x", None)
DTYPES = ("int4", "uint4", "int8", "uint8")


class Case(NamedTuple):
    """A, (M, K), by B, (K, N), in blocks; which of them have zero points; and their batches."""

    m: int
    k: int
    n: int
    block_size: int
    dtype: str
    zero_point: bool = False
    a_dtype: str = "int8"
    a_zero_point: bool = False
    batch: tuple[int, ...] = ()
    b_batch: tuple[int, ...] = ()


def operands(case: Case) -> Operands:
    """Random integers; scales of either sign, with infinities or zeros."""
    random = np.random.default_rng(zlib.crc32(repr(case).encode()))
    blocks = -(-case.k // case.block_size)
    a = integers(random, case.a_dtype, (*case.batch, case.m, case.k))
    b = integers(random, case.dtype, (*case.b_batch, case.k, case.n))
    scale = random.normal(size=(*case.b_batch, blocks, case.n)).astype(np.float32)
    scale = np.where(random.random(scale.shape) < 0.01, np.float32(random.choice([0, np.inf, -0.0])), scale)
    a_zero_point = integers(random, case.a_dtype, (*case.batch, case.m, 1)) if case.a_zero_point else None
    b_zero_point = integers(random, case.dtype, scale.shape) if case.zero_point else None
    return Operands(a=a, a_zero_point=a_zero_point, b=b, scale=scale, b_zero_point=b_zero_point)


def expected(drawn: Operands, block_size: int) -> np.ndarray:
    """The formula, in NumPy."""
    a, a_zero_point, b, scale, b_zero_point = drawn
    one = np.ones((1,) * a.ndim, np.float32)
    with np.errstate(all="ignore"):
        return reference.block_scaled_matmul(a, one, a_zero_point, b, scale, b_zero_point, block_size=block_size)


def kernel(drawn: Operands, block_size: int, config: BlockTileConfig, interpret=True) -> jax.Array:
    """The product by the TPU kernel, of whole blocks, as the primitive hands them to it."""
    matrix = drawn.packed(block_size)
    a = padded(drawn.a, drawn.a_zero_point, matrix.padding)

    @jax.jit
    def function(a, a_zero_point, b):
        return tpu_blocks.block_dot(a, a_zero_point, b, config=config, interpret=interpret)

    return function(a, drawn.a_zero_point, dataclasses.replace(matrix, padding=0))


def config(case: Case, *, chip="v5e", block_k=None, block_m=None, block_n=128) -> BlockTileConfig:
    """The tile configuration of a chip, with smaller tiles, so that there are several."""
    size = -(-case.k // case.block_size) * case.block_size
    default = config_for(chip, case.m, size, case.n, case.block_size, 4 if "4" in case.dtype else 8)
    changes = {"block_k": block_k or default.block_k, "block_m": block_m or default.block_m, "block_n": block_n}
    return dataclasses.replace(default, **changes)


def check(case: Case, config: BlockTileConfig, interpret=True) -> None:
    """Compares the kernel with the formula, and the signs of zeros."""
    drawn = operands(case)
    actual = kernel(drawn, case.block_size, config, interpret)
    assert actual.dtype == np.float32
    formula = expected(drawn, case.block_size)
    np.testing.assert_array_equal(actual, formula, err_msg=str(case))
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(formula), err_msg=str(case))


A_OPERANDS = (("int8", False), ("int8", True), ("uint8", False), ("uint8", True))
OPERANDS = [
    (dtype, zero_point, a_dtype, a_zero_point, m, block_size)
    for (block_size, dtype, zero_point, (a_dtype, a_zero_point), m) in itertools.product(
        (32, 64, 128, 256), DTYPES, (False, True), A_OPERANDS, (3, 40)
    )
]


@pytest.mark.gate
@one_in(29, ("dtype", "zero_point", "a_dtype", "a_zero_point", "m", "block_size"), OPERANDS, others="full")
def test_all_operands(dtype, zero_point, a_dtype, a_zero_point, m, block_size):
    """In three steps of K, the last of which has fewer blocks, and several tiles of rows and columns."""
    case = Case(m, 2 * 256 + block_size - 5, 200, block_size, dtype, zero_point, a_dtype, a_zero_point)
    check(case, config(case, block_k=256, block_m=8 if m == 3 else 32))


@one_in(5, ("chip", "m"), itertools.product(["v6e", None], [1, 12, 33]))
def test_default_tile_configurations(chip, m):
    case = Case(m, 700, 300, 32, "int4", zero_point=m == 12)
    check(case, config_for(chip, m, 704, 300, 32, 4))


@one_in(
    3,
    ("m", "batch", "b_batch"),
    [(m, *pair) for pair in (((2, 3), (1, 1)), ((2, 3), (2, 3)), ((1, 3), (2, 1))) for m in (2, 20)],
)
def test_batches(m, batch, b_batch):
    case = Case(m, 128, 130, 64, "uint4", True, "uint8", True, batch, b_batch)
    rows = m * 6 if b_batch == (1, 1) else m
    check(case, config(case._replace(m=rows)))


@pytest.mark.gate
def test_each_operand_mapped_alone(monkeypatch):
    """By `jax.vmap`: the kernel gets one batch of A and one of B."""
    drawn = operands(Case(3, 90, 130, 32, "uint4", True, "uint8", True))
    outputs, expected = (
        mapped_operands.outputs(monkeypatch, function, (drawn.a, drawn.a_zero_point, drawn.packed(32)))
        for function in (functools.partial(tpu_blocks.block_dot, interpret=True), xla_blocks.block_dot)
    )
    for output, expected_output in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output, expected_output)


@pytest.mark.gate
@one_in(2, ("m", "zero_points"), itertools.product((3, 40), (False, True)), first=1, others="full")
def test_no_races_and_no_reads_out_of_bounds(m, zero_points, capfd):
    """Memory that was not written, such as the ends of ragged blocks, holds the largest integer here."""
    case = Case(m, 600, 200, 64, "int4", zero_points, "int8", zero_points)
    interpret = pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2, random_seed=1)
    check(case, config(case, block_k=256, block_m=8 if m == 3 else 32), interpret)
    assert "race" not in "".join(capfd.readouterr()).lower()


def test_products_and_sums_are_not_fused():
    """Blocks whose scaled products lie between two float32 numbers: a fused product and sum would give other bits."""
    case = Case(40, 512, 128, 32, "int4")
    drawn = operands(case)._replace(scale=np.full((16, 128), 1 / 3, np.float32))
    np.testing.assert_array_equal(kernel(drawn, 32, config(case)), expected(drawn, 32))
    products = (drawn.a.astype(int).reshape(40, 16, 32)[:, :, None] @ drawn.b.astype(int).reshape(16, 32, 128))[:, :, 0]
    fused = np.zeros((40, 128))
    for term in np.moveaxis(products, 1, 0):
        fused = (fused + term * np.float64(np.float32(1 / 3))).astype(np.float32)
    assert not np.array_equal(fused, expected(drawn, 32))


# ---------------------------------------------------------------------------------------------------------------------


def lower(m=40, k=256, n=128, block_size=32, dtype="int4", k_parts=1) -> str:
    """The text of the operator's program for TPUs, with this kernel asked for."""
    b = jax.ShapeDtypeStruct((k, n), jnp.dtype(dtype))
    scale = jax.ShapeDtypeStruct((-(-k // block_size), n), jnp.float32)

    def function(a, b, scale):
        matrix = jquant.pack_matrix(b, scale=scale, block_size=block_size)
        return jquant.block_scaled_matmul(a, 0.5, None, matrix, k_parts=k_parts, implementation="mosaic_tpu")

    traced = jax.jit(function).trace(jax.ShapeDtypeStruct((m, k), jnp.int8), b, scale)
    return traced.lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.parametrize("k_parts", [1, 4])
@pytest.mark.parametrize("m", [1, 40])
def test_the_operator_calls_the_kernel(m, k_parts):
    assert lower(m, k_parts=k_parts).count("tpu_custom_call") == 1


def test_result_varies_over_a_mesh_like_the_operands():
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("x",))
    matrix = operands(Case(4, 64, 128, 32, "int4")).packed(32)

    def lowered(out_spec):
        def dot(a, b):
            return jquant.block_scaled_matmul(a, 0.5, None, b, implementation="mosaic_tpu")

        sharded = jax.shard_map(dot, mesh=mesh, in_specs=(P("x"), P()), out_specs=out_spec)
        traced = jax.jit(sharded).trace(jax.ShapeDtypeStruct((40, 64), jnp.int8), matrix)
        return traced.lower(lowering_platforms=("tpu",)).as_text()

    assert "tpu_custom_call" in lowered(P("x"))
    with pytest.raises(ValueError, match="replicated"):
        lowered(P())


def test_lowers_with_64_bits_enabled():
    with jax.enable_x64(True):
        assert "tpu_custom_call" in lower()


@pytest.mark.parametrize(
    ("block_size", "dtype", "message"), [(16, "int4", "blocks of 32, 64"), (512, "int8", "at most 256")]
)
def test_unsupported_blocks_raise(block_size, dtype, message):
    with pytest.raises(NotImplementedError, match=message):
        lower(k=1024, block_size=block_size, dtype=dtype)


def test_blocks_with_a_minimum_raise():
    scale = np.ones((2, 128), np.float32)
    matrix = jquant.pack_matrix(np.ones((64, 128), jnp.uint4), scale=scale, minimum=scale)
    with pytest.raises(NotImplementedError, match="not with a minimum"):
        tpu_blocks.block_dot(jnp.ones((8, 64), jnp.int8), None, matrix)


def test_empty_matrices_raise():
    with pytest.raises(NotImplementedError, match="empty"):
        lower(m=0)


def test_other_platforms_raise():
    matrix = jquant.pack_matrix(np.ones((64, 8), jnp.int4), scale=np.ones((2, 8), np.float32))
    with pytest.raises(NotImplementedError, match="this program is for cpu"):
        jquant.block_scaled_matmul(np.ones((1, 64), np.int8), 0.5, None, matrix, implementation="mosaic_tpu")


# ---------------------------------------------------------------------------------------------------------------------


def configs():
    shapes = itertools.product(CHIPS, (1, 16, 17, 300, 4096), (32, 704, 4096, 11008), (1, 300, 4096), (32, 64, 128, 256))
    for chip, m, k, n, block_size in shapes:
        k = -(-k // block_size) * block_size
        yield m, k, n, block_size, config_for(chip, m, k, n, block_size, 4)


def test_tiles_take_whole_registers_and_blocks():
    for m, k, n, block_size, config in configs():
        assert config.block_m % (8 if config.stacked else 32) == config.block_n % 128 == config.block_k % config.depth == 0
        assert config.depth % block_size == config.depth % 128 == 0
        assert config.block_m < m + 32
        assert config.block_k < k + config.depth
        assert config.block_n < n + 128


def test_tiles_fit_into_vector_memory():
    for *_, config in configs():
        assert config.vmem_limit_bytes < 40 * 2**20


def test_tiles_for_chips_without_an_int8_unit_raise():
    with pytest.raises(NotImplementedError, match="TPU v4 does not multiply int8"):
        config_for("v4", 8, 64, 8, 32, 4)
