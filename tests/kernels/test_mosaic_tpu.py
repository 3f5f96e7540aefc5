"""The TPU kernel: interpreted, against the formulas in NumPy, and lowered for TPUs, for which no TPU is needed."""

import itertools
import subprocess
import sys
import zlib
from typing import NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P
from support.sampling import one_in

from jquant.arithmetic import signs
from jquant.kernels import xla, zero_point
from jquant.kernels.epilogue import AddBias, Dequantize, Requantize, ZeroPointCorrection
from jquant.kernels.pallas import tpu
from jquant.kernels.pallas.tpu_tiles import TileConfig
from jquant.reference import products as reference
from jquant.reference.rounding import saturate

float32 = np.float32
DTYPE_PAIRS = tuple(itertools.product((np.int8, np.uint8), repeat=2))
ZERO_POINTS = ("none", "per tensor", "per row or column")
FORMS = ("int32", "float32", "float16", "bfloat16", "int8", "uint8")
DTYPES = {"bfloat16": ml_dtypes.bfloat16}
BLOCKS = {"m": (8, 16, 32), "k": (8, 16, 32, 128), "n": (8, 16, 32, 128)}
CASES_PER_PROGRAM = 48  # in the batch, so that they are compiled once


def config(m: int, k: int, n: int) -> TileConfig:
    return TileConfig(block_m=m, block_k=k, block_n=n, rows_at_once=16, vmem_limit_bytes=2**24)


class Program(NamedTuple):
    """Everything of a product that decides its program: shapes, tiles, dtypes, zero points and output."""

    m: int
    k: int
    n: int
    config: TileConfig
    batch: tuple[tuple[int, ...], tuple[int, ...]]
    transpose_b: bool
    dtypes: tuple[type, type]
    zero_points: tuple[str, str]
    form: str


def program(random: np.random.Generator, form: str, dtypes, zero_points) -> Program:
    m, k, n = (int(size) for size in random.integers(1, 71, 3))
    blocks = (int(random.choice(BLOCKS[axis])) for axis in "mkn")
    count = CASES_PER_PROGRAM
    batches = (((count,), (count,)), ((count,), (1,)), ((1,), (count,)), ((3, 1), (1, count // 3)), ((2, count // 2),) * 2)
    batch = batches[random.integers(len(batches))]
    return Program(
        m=m,
        k=k,
        n=n,
        config=config(*blocks),
        batch=batch,
        transpose_b=bool(random.integers(2)),
        dtypes=dtypes,
        zero_points=zero_points,
        form=form,
    )


def operand(random: np.random.Generator, dtype, shape) -> np.ndarray:
    """Random integers; some matrices have only the two ends of the range, for the largest sums."""
    limits = np.iinfo(dtype)
    ends = random.choice(np.array([limits.min, limits.max], dtype), shape)
    is_extreme = random.random((*shape[:-2], 1, 1)) < 0.2
    return np.where(is_extreme, ends, random.integers(limits.min, limits.max, shape, dtype, endpoint=True))


def factors(random: np.random.Generator, shape) -> np.ndarray:
    """Random float32 factors, far from overflow and underflow; some are infinite, NaN or 0."""
    values = (random.choice([-1, 1], shape) * 2.0 ** random.uniform(-14, 2, shape)).astype(float32)
    return np.where(random.random(shape) < 0.02, random.choice(float32([np.inf, np.nan, 0]), shape), values)


def check(program: Program, random: np.random.Generator, interpret) -> None:
    """Compares a program with NumPy, for all cases of its batch."""
    m, k, n, config, (a_batch, b_batch), transpose_b, (a_dtype, b_dtype), (a_zero_points, b_zero_points), form = program
    batch = np.broadcast_shapes(a_batch, b_batch)
    a, b = operand(random, a_dtype, (*a_batch, m, k)), operand(random, b_dtype, (*b_batch, k, n))
    a_shape = {"none": None, "per tensor": (*a_batch, 1, 1), "per row or column": (*a_batch, m, 1)}[a_zero_points]
    b_shape = {"none": None, "per tensor": (*b_batch, 1, 1), "per row or column": (*b_batch, 1, n)}[b_zero_points]
    a_zero_point = None if a_shape is None else operand(random, a_dtype, a_shape)
    b_zero_point = None if b_shape is None else operand(random, b_dtype, b_shape)
    zeros = [np.int64(0) if zero is None else zero for zero in (a_zero_point, b_zero_point)]
    expected = reference.matmul_integer(a, b, *zeros)
    steps, expected = epilogue(random, form, batch, expected)

    @jax.jit
    def actual(a, b, a_zero_point, b_zero_point, steps):
        def correction():
            a_zero = zero_point.shifted(a_zero_point, a.dtype, a.ndim)
            b_zero = zero_point.shifted(b_zero_point, b.dtype, b.ndim)
            row_sum = a8.sum(-1, keepdims=True, dtype=jnp.int32)
            column_sum = b8.sum(-2, keepdims=True, dtype=jnp.int32)
            return zero_point.correction(a_zero, b_zero, row_sum, column_sum, k)

        a8, b8 = signs.to_int8(a), signs.to_int8(b)
        matrix = b8.mT if transpose_b else b8
        return tpu.integer_dot(
            a8, matrix, (correction(), *steps), transpose_b=transpose_b, config=config, interpret=interpret
        )

    result = actual(a, b, a_zero_point, b_zero_point, steps)
    assert result.dtype == expected.dtype
    dtype = np.float32 if form in ("float16", "bfloat16") else expected.dtype  # NumPy knows no NaN of bfloat16
    np.testing.assert_array_equal(np.asarray(result).astype(dtype), expected.astype(dtype), err_msg=str(program))


def epilogue(random: np.random.Generator, form: str, batch, product: np.ndarray):
    """Steps with arrays of random shapes that broadcast, and their result in NumPy."""
    m, n = product.shape[-2:]
    batches = (batch, (1,) * len(batch))
    rows, columns, scalar, full = ((m, 1), (1, n), (1, 1), (m, n))

    def shape(*shapes):
        return (*batches[random.integers(2)], *shapes[random.integers(len(shapes))])

    dtype = np.dtype(DTYPES.get(form, form))
    with np.errstate(all="ignore"):
        if form == "int32":
            return (), product
        if form in ("int8", "uint8"):
            bias = random.integers(-(2**16), 2**16, shape(scalar, columns, rows, full), np.int32)
            product = product + bias
            multiplier = factors(random, shape(scalar, columns, rows, full)) / k_scale(product)
            zero = None
            if random.random() < 0.7:
                zero = random.integers(-128, 256, shape(scalar, rows)).astype(random.choice([np.int32, float32]))
            rounded = np.rint(product.astype(float32) * multiplier)
            value = rounded if zero is None else rounded + zero.astype(float32)
            return (AddBias(bias), Requantize(multiplier, zero, dtype)), saturate(value, dtype)
        a_scale, b_scale = factors(random, shape(scalar, rows)), factors(random, shape(scalar, columns))
        bias = factors(random, shape(scalar, columns, rows, full)) if random.random() < 0.7 else None
        value = product.astype(float32) * (a_scale * b_scale)
        value = value if bias is None else value + bias
        return (Dequantize(a_scale, b_scale, bias, dtype),), value.astype(dtype)


def k_scale(product: np.ndarray) -> np.ndarray:
    """The divisor that brings most products into the range of 8 bits."""
    return float32(np.abs(product.astype(np.float64)).mean() / 64 + 1)


@pytest.mark.gate
@one_in(9, "form", FORMS, others="full")
def test_random_programs(form, full):
    random = np.random.default_rng(zlib.crc32(form.encode()))
    variants = list(itertools.product(DTYPE_PAIRS, itertools.product(ZERO_POINTS, repeat=2)))
    count = len(variants) if full else 16 if form == "int32" else 5
    for dtypes, zero_points in (variants[i] for i in random.permutation(len(variants))[:count]):
        check(program(random, form, dtypes, zero_points), random, interpret=True)


@pytest.mark.gate
@one_in(3, ("transpose_b", "form"), itertools.product([False, True], ["int32", "bfloat16", "uint8"]), others="full")
def test_no_races_and_no_reads_out_of_bounds(form, transpose_b, capfd):
    """Memory that was not written, such as the ends of ragged blocks, holds the largest integer here."""
    random = np.random.default_rng(zlib.crc32(form.encode()) + transpose_b)
    interpret = pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2, random_seed=1)
    dtypes, zero_points = DTYPE_PAIRS[random.integers(4)], ("per tensor", "per row or column")
    for m, k, n in ((45, 300, 130), (33, 40, 200)):
        tiles = config(32, 128, 128)
        check(Program(m, k, n, tiles, ((1,), (2,)), transpose_b, dtypes, zero_points, form), random, interpret)
    assert "race" not in "".join(capfd.readouterr()).lower()


@one_in(5, ("k", "transpose_b"), itertools.product([1, 127, 128, 129, 1024, 1025, 2500], [False, True]))
def test_partial_blocks_of_k(k, transpose_b):
    random = np.random.default_rng(k)
    a, b = operand(random, np.int8, (5, k)), operand(random, np.int8, (k, 300))
    result = tpu.integer_dot(a, b.T if transpose_b else b, (), transpose_b=transpose_b, interpret=True)
    np.testing.assert_array_equal(result, reference.matmul_integer(a, b))


def test_sums_beyond_int32_wrap():
    a, b = np.full((1, 132_000), -128, np.int8), np.full((132_000, 1), -128, np.int8)
    result = tpu.integer_dot(a, b, (), config=config(32, 1024, 128), interpret=True)
    np.testing.assert_array_equal(result, reference.matmul_integer(a, b))
    assert result[0, 0] < 0


def test_a_batch_of_the_epilogue_alone():
    random = np.random.default_rng(0)
    a, b = operand(random, np.int8, (1, 40, 50)), operand(random, np.int8, (1, 50, 60))
    columns = random.integers(-999, 999, (3, 1, 60), np.int32)
    result = tpu.integer_dot(a, b, (ZeroPointCorrection(((columns,),)),), config=config(32, 128, 128), interpret=True)
    np.testing.assert_array_equal(result, reference.matmul_integer(a, b) - columns)


@pytest.mark.parametrize("form", ["int32", "bfloat16", "uint8"])
def test_equals_the_xla_implementation(form):
    random = np.random.default_rng(zlib.crc32(form.encode()))
    a, b = operand(random, np.int8, (2, 50, 200)), operand(random, np.int8, (1, 200, 140))
    correction = ZeroPointCorrection(
        ((random.integers(-9, 9, (2, 50, 1), np.int32), random.integers(-999, 999, (1, 1, 140), np.int32)),)
    )
    steps, _ = epilogue(random, form, (2,), reference.matmul_integer(a, b))

    def dot(implementation, **options):
        return jax.jit(lambda *operands: implementation(*operands, **options))(a, b, (correction, *steps))

    tiled = dot(tpu.integer_dot, config=config(32, 128, 128), interpret=True)
    np.testing.assert_array_equal(tiled, dot(xla.integer_dot))


# ---------------------------------------------------------------------------------------------------------------------


def lower(form: str, *, m=300, k=1100, n=520, batch=(), transpose_b=False, a_dtype=jnp.int8):
    """The text of the program for TPUs of an unknown version."""
    b_shape = (*(1,) * len(batch), *((n, k) if transpose_b else (k, n)))
    a, b = jax.ShapeDtypeStruct((*batch, m, k), a_dtype), jax.ShapeDtypeStruct(b_shape, jnp.int8)
    ones = (1,) * len(batch)

    def array(rows, columns, dtype=jnp.float32):
        return jax.ShapeDtypeStruct((*ones, rows, columns), dtype)

    correction = ZeroPointCorrection(((array(m, 1, jnp.int32), array(1, n, jnp.int32)), (array(1, n, jnp.int32),)))
    dtype = np.dtype(DTYPES.get(form, form))
    if form == "int32":
        steps = (correction,)
    elif form in ("int8", "uint8"):
        steps = (correction, Requantize(array(1, n), array(1, 1), dtype))
    else:
        steps = (correction, Dequantize(array(m, 1), array(1, n), array(m, n), dtype))
    traced = jax.jit(tpu.integer_dot, static_argnames="transpose_b").trace(a, b, steps, transpose_b=transpose_b)
    assert traced.out_info.dtype == dtype
    assert traced.out_info.shape == (*batch, m, n)
    return traced.lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_lowers_without_a_tpu(form, transpose_b):
    assert "tpu_custom_call" in lower(form, transpose_b=transpose_b)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (1, 4096, 4096), (7, 130, 3), (4096, 64, 129), (257, 9000, 1000)])
def test_lowers_at_odd_sizes(m, k, n):
    assert "tpu_custom_call" in lower("float32", m=m, k=k, n=n, batch=(2, 3))


@pytest.mark.parametrize("form", ["int32", "bfloat16", "uint8"])
def test_lowers_with_64_bits_enabled(form):
    with jax.enable_x64(True):
        assert "tpu_custom_call" in lower(form)


def test_result_varies_over_a_mesh_like_the_operands():
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("x",))
    a, b = jax.ShapeDtypeStruct((64, 128), jnp.int8), jax.ShapeDtypeStruct((128, 128), jnp.int8)

    def lowered(out_spec):
        def dot(a, b):
            return tpu.integer_dot(a, b, ())

        sharded = jax.shard_map(dot, mesh=mesh, in_specs=(P("x"), P()), out_specs=out_spec)
        return jax.jit(sharded).trace(a, b).lower(lowering_platforms=("tpu",)).as_text()

    assert "tpu_custom_call" in lowered(P("x"))
    with pytest.raises(ValueError, match="replicated"):
        lowered(P())


@pytest.mark.gate
def test_importing_jquant_does_not_import_pallas():
    program = "import sys, jquant; assert 'jax.experimental.pallas' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_exports_for_tpus():
    shape = jax.ShapeDtypeStruct((256, 256), jnp.int8)
    exported = jax.export.export(jax.jit(lambda a, b: tpu.integer_dot(a, b, ())), platforms=["tpu"])(shape, shape)
    assert exported.out_avals[0].dtype == jnp.int32


# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [{"m": 0}, {"k": 0}, {"n": 0}, {"batch": (0,)}])
def test_empty_matrices_raise(sizes):
    with pytest.raises(NotImplementedError, match="empty"):
        lower("int32", **sizes)


def test_uint8_raises():
    with pytest.raises(NotImplementedError, match="uint8"):
        lower("int32", a_dtype=jnp.uint8)


def test_symbolic_sizes_raise():
    (m,) = jax.export.symbolic_shape("m")
    with pytest.raises(NotImplementedError, match="symbolic"):
        lower("int32", m=m)


def abstract_chip(device_kind: str):
    device = jax.sharding.AbstractDevice(device_kind, 1, "tpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device))


def test_old_chips_raise():
    with abstract_chip("TPU v4"), pytest.raises(NotImplementedError, match="TPU v4 does not multiply int8"):
        lower("int32")


@pytest.mark.parametrize(
    ("device_kind", "chip"),
    [("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU v6 lite", "v6e"), ("TPU7x", "7x"), ("cpu", None)],
)
def test_the_chip_of_the_mesh_in_context(device_kind, chip):
    with abstract_chip(device_kind):
        assert tpu.current_chip() == chip


def test_the_chip_is_unknown_without_a_tpu():
    with jax.default_device(jax.devices("cpu")[0]):
        assert tpu.current_chip() is None
