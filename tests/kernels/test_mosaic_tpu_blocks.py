"""The TPU kernel for scales by block, interpreted, against the formula in NumPy; and lowered for TPUs, which needs none."""

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
from jquant import reference
from jquant.kernels import xla_blocks
from jquant.kernels.pallas import tpu_blocks
from jquant.kernels.pallas.tpu_block_tiles import BlockTileConfig, config_for

from . import mapped_operands

CHIPS = ("v5e", "v5p", "v6e", "7", "7x", None)
DTYPES = ("int4", "uint4", "int8", "uint8")
LIMITS = {"int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255)}


class Case(NamedTuple):
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


class Operands(NamedTuple):
    a: np.ndarray
    a_zero_point: np.ndarray | None
    b: np.ndarray
    scale: np.ndarray
    b_zero_point: np.ndarray | None


def operands(case: Case) -> Operands:
    """Anything, with some rows and columns at the ends of the range; scales of either sign, with infinities and 0."""
    random = np.random.default_rng(zlib.crc32(repr(case).encode()))

    def integers(dtype: str, shape, *, ends=0.2):
        low, high = LIMITS[dtype]
        values = random.integers(low, high, shape, endpoint=True)
        at_end = random.random((*shape[:-1], 1)) < ends
        return np.where(at_end, random.choice([low, high], (*shape[:-1], 1)), values).astype(jnp.dtype(dtype))

    blocks = -(-case.k // case.block_size)
    a, b = integers(case.a_dtype, (*case.batch, case.m, case.k)), integers(case.dtype, (*case.b_batch, case.k, case.n))
    scale = random.normal(size=(*case.b_batch, blocks, case.n)).astype(np.float32)
    scale = np.where(random.random(scale.shape) < 0.01, np.float32(random.choice([0, np.inf, -0.0])), scale)
    a_zero_point = integers(case.a_dtype, (*case.batch, case.m, 1)) if case.a_zero_point else None
    b_zero_point = integers(case.dtype, scale.shape) if case.zero_point else None
    return Operands(a, a_zero_point, b, scale, b_zero_point)


def packed(given: Operands, block_size: int) -> jquant.PackedBlockMatrix:
    return jquant.pack_matrix(given.b, given.b_zero_point, scale=given.scale, block_size=block_size)


def expected(given: Operands, block_size: int, k_parts: int = 1) -> np.ndarray:
    a, a_zero_point, b, scale, b_zero_point = given
    one = np.ones((1,) * a.ndim, np.float32)
    with np.errstate(all="ignore"):
        return reference.block_scaled_matmul(
            a, one, a_zero_point, b, scale, b_zero_point, block_size=block_size, k_parts=k_parts
        )


def kernel(given: Operands, block_size: int, config: BlockTileConfig, interpret=True) -> jax.Array:
    """In whole blocks, as the primitive hands them over."""
    a, a_zero_point, *_ = given
    matrix = packed(given, block_size)
    fill = np.zeros((), a.dtype) if a_zero_point is None else a_zero_point
    a = np.concatenate([a, np.broadcast_to(fill, (*a.shape[:-1], matrix.padding))], axis=-1)

    @jax.jit
    def function(a, a_zero_point, b):
        return tpu_blocks.block_dot(a, a_zero_point, b, config=config, interpret=interpret)

    matrix = dataclasses.replace(matrix, padding=0)
    return function(a, a_zero_point, matrix)


def config(case: Case, *, chip="v5e", block_k=None, block_m=None, block_n=128) -> BlockTileConfig:
    """That of a chip, in smaller tiles, so that there are several."""
    size = -(-case.k // case.block_size) * case.block_size
    made = config_for(chip, case.m, size, case.n, case.block_size, 4 if "4" in case.dtype else 8)
    changes = {"block_k": block_k or made.block_k, "block_m": block_m or made.block_m, "block_n": block_n}
    return dataclasses.replace(made, **changes)


def check(case: Case, config: BlockTileConfig, interpret=True) -> None:
    given = operands(case)
    result = kernel(given, case.block_size, config, interpret)
    assert result.dtype == np.float32
    wanted = expected(given, case.block_size)
    np.testing.assert_array_equal(result, wanted, err_msg=str(case))
    np.testing.assert_array_equal(np.signbit(result), np.signbit(wanted), err_msg=str(case))


ZEROS = (("int8", False), ("int8", True), ("uint8", False), ("uint8", True))
KINDS = [
    (dtype, zero_point, a_dtype, a_zero_point, m, block_size)
    for (block_size, dtype, zero_point, (a_dtype, a_zero_point), m) in itertools.product(
        (32, 64, 128, 256), DTYPES, (False, True), ZEROS, (3, 40)
    )
]


@pytest.mark.gate
@one_in(29, ("dtype", "zero_point", "a_dtype", "a_zero_point", "m", "block_size"), KINDS, others="full")
def test_every_kind_of_operands(dtype, zero_point, a_dtype, a_zero_point, m, block_size):
    """In three steps of K, of which the last has less blocks, and several tiles of rows and columns."""
    case = Case(m, 2 * 256 + block_size - 5, 200, block_size, dtype, zero_point, a_dtype, a_zero_point)
    check(case, config(case, block_k=256, block_m=8 if m == 3 else 32))


@one_in(5, ("chip", "m"), itertools.product(["v6e", None], [1, 12, 33]))
def test_the_tiles_of_chips(chip, m):
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
    """By `jax.vmap`: the kernel is given one batch of A and one of B."""
    given = operands(Case(3, 90, 130, 32, "uint4", True, "uint8", True))
    found, expected = (
        mapped_operands.outputs(monkeypatch, function, (given.a, given.a_zero_point, packed(given, 32)))
        for function in (functools.partial(tpu_blocks.block_dot, interpret=True), xla_blocks.block_dot)
    )
    for result, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.gate
@one_in(2, ("m", "zeros"), itertools.product((3, 40), (False, True)), first=1, others="full")
def test_no_races_and_no_reads_out_of_bounds(m, zeros, capfd):
    """Memory that nothing has written, as the ends of ragged blocks are, holds the largest integer here."""
    case = Case(m, 600, 200, 64, "int4", zeros, "int8", zeros)
    interpret = pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2, random_seed=1)
    check(case, config(case, block_k=256, block_m=8 if m == 3 else 32), interpret)
    assert "race" not in "".join(capfd.readouterr()).lower()


def test_sums_that_float32_must_round_to_even():
    """Blocks whose scaled products lie between two float32: a fused product and sum would give other bits."""
    case = Case(40, 512, 128, 32, "int4")
    given = operands(case)._replace(scale=np.full((16, 128), 1 / 3, np.float32))
    np.testing.assert_array_equal(kernel(given, 32, config(case)), expected(given, 32))
    products = (given.a.astype(int).reshape(40, 16, 32)[:, :, None] @ given.b.astype(int).reshape(16, 32, 128))[:, :, 0]
    fused = np.zeros((40, 128))
    for term in np.moveaxis(products, 1, 0):
        fused = (fused + term * np.float64(np.float32(1 / 3))).astype(np.float32)
    assert not np.array_equal(fused, expected(given, 32))


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
def test_the_operator_takes_the_kernel(m, k_parts):
    assert lower(m, k_parts=k_parts).count("tpu_custom_call") == 1


def test_varies_over_a_mesh_as_its_operands_do():
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("x",))
    matrix = packed(operands(Case(4, 64, 128, 32, "int4")), 32)

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


@pytest.mark.parametrize(("block_size", "dtype", "what"), [(16, "int4", "blocks of 32, 64"), (512, "int8", "at most 256")])
def test_blocks_without_a_plan_raise(block_size, dtype, what):
    with pytest.raises(NotImplementedError, match=what):
        lower(k=1024, block_size=block_size, dtype=dtype)


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
    for m, k, n, block_size, made in configs():
        assert made.block_m % (8 if made.stacked else 32) == made.block_n % 128 == made.block_k % made.depth == 0
        assert made.depth % block_size == made.depth % 128 == 0
        assert made.block_m < m + 32
        assert made.block_k < k + made.depth
        assert made.block_n < n + 128


def test_tiles_fit_into_vector_memory():
    for *_, made in configs():
        assert made.vmem_limit_bytes < 40 * 2**20


def test_tiles_for_chips_without_an_int8_unit_raise():
    with pytest.raises(NotImplementedError, match="TPU v4 does not multiply int8"):
        config_for("v4", 8, 64, 8, 32, 4)
