"""The TPU kernel that quantizes floats: interpreted, against the operators it stands for; and where it is chosen."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P
from support.sampling import one_in

import jquant
from jquant.arithmetic import integer_quotient
from jquant.kernels import implementations
from jquant.kernels.epilogue import Dequantize
from jquant.kernels.float_rows import FloatRows
from jquant.kernels.pallas import tpu, tpu_traffic
from jquant.kernels.pallas.tpu_tiles import TileConfig, config_for
from jquant.modes import Implementation

float32 = np.float32
BY_ROW = {"axis": -1, "symmetric": True, "output_dtype": "INT8", "feature_level": "EXTENDED"}
TILES = {  # of which the second hold all of K
    block_k: TileConfig(block_m=32, block_k=block_k, block_n=128, rows_at_once=16, vmem_limit_bytes=2**24)
    for block_k in (128, 512)
}


def quotients(random: np.random.Generator, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and divisors of all exponents, whose quotients are within some ulps of integers and of ties."""
    exponents = np.arange(rows) % 254 + 1
    divisors = ((exponents << 23) | random.integers(0, 2**23, rows)).astype(np.int32).view(float32)[:, None]
    divisors[::7] *= -1
    halves = random.integers(-260, 261, (rows, columns)) / 2
    with np.errstate(over="ignore"):
        nearest = (halves * divisors).astype(float32)
        numbers = (nearest.view(np.int32) + random.integers(-3, 4, nearest.shape)).astype(np.int32).view(float32)
    return np.where(abs(numbers) < np.finfo(float32).tiny, float32(0), numbers), divisors


def test_rounded_quotients():
    """Against NumPy, whose division is correctly rounded; a million of them, and all pairs of special numbers."""
    special = float32([0, -0.0, 1, -1, 0.5, 126.5, -127.5, 2**-126, 1e10, 3e38, -3e38, np.inf, -np.inf, np.nan])
    cases = [quotients(np.random.default_rng(0), 2540, 400), (special[None], special[:, None])]
    rounded = jax.jit(lambda x, d: integer_quotient.rounded(x, integer_quotient.divisor(d)))
    for x, d in cases:
        with np.errstate(all="ignore"):
            quotient = np.nan_to_num(x / d, nan=0, posinf=1e9, neginf=-1e9)
        np.testing.assert_array_equal(rounded(x, d), np.rint(quotient).clip(-128, 127).astype(np.int8))


def activations(random: np.random.Generator, shape, dtype) -> np.ndarray:
    """Rows of all magnitudes, some with numbers midway between integers; rows of zeros, and rows with NaN and infinities."""
    x = random.normal(size=shape) * 10.0 ** random.uniform(-30, 30, (*shape[:-1], 1))
    ties = random.integers(-254, 255, shape) / 2
    ties[..., 0] = 127
    x = np.where(random.random((*shape[:-1], 1)) < 0.3, ties, x)
    x[..., 1, :] = 0
    for row, value in ((2, np.nan), (3, np.inf), (4, -np.inf)):
        x[..., row, -1] = value
    return x.astype(dtype)


def composition(x, weights, weights_scale, dtype, transpose_b):
    """The operators, mapped over the batch, and the scales that they find."""

    @jax.jit
    @jax.vmap
    def multiply(x):
        values, scale, _ = jquant.dynamic_quantize_linear(x, **BY_ROW)
        matrix = weights.T if transpose_b else weights
        options = {"output_dtype": dtype, "feature_level": "EXTENDED"}
        return jquant.matmul_integer_to_float(values, scale, None, matrix, weights_scale, **options), scale

    return multiply(x)


def check(a_dtype, sizes, transpose_b, config, interpret):
    (m, k, n), dtype = sizes, np.dtype(float32)
    random = np.random.default_rng([m, k, n, transpose_b])
    x = activations(random, (2, m, k), a_dtype)
    weights = random.integers(-128, 128, (n, k) if transpose_b else (k, n), np.int8)
    weights_scale = (2.0 ** random.uniform(-9, 1, (1, n))).astype(float32)
    expected, scale = composition(x, weights, weights_scale, dtype, transpose_b)
    options = {"transpose_b": transpose_b, "config": config, "interpret": interpret}
    steps = (Dequantize(scale, weights_scale[None], None, dtype),)
    actual = tpu.integer_dot(FloatRows(x, scale), weights[None], steps, **options)
    assert np.isnan(np.asarray(actual, float32)).any()
    assert np.isfinite(np.asarray(actual, float32)).any()
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(actual, float32), np.asarray(expected, float32))


SIZES = [(45, 300, 130), (33, 128, 129), (6, 40, 300), (70, 500, 260)]


CASES = list(itertools.product(SIZES, (float32, jnp.bfloat16), (False, True), TILES))


@one_in(10, ("sizes", "a_dtype", "transpose_b", "block_k"), CASES, others="full")
def test_equals_the_operators(sizes, a_dtype, transpose_b, block_k):
    """In ragged blocks, with K in several or in one."""
    check(a_dtype, sizes, transpose_b, TILES[block_k], interpret=True)


def test_a_scale_for_all_rows_and_an_output_of_16_bits():
    random = np.random.default_rng(0)
    x, weights = random.normal(size=(40, 300)).astype(float32), random.integers(-128, 128, (300, 200), np.int8)
    options = {"output_dtype": jnp.float16, "feature_level": "EXTENDED"}
    integers = jquant.quantize_linear(x, 0.03, output_dtype="INT8", feature_level="EXTENDED")
    expected = jquant.matmul_integer_to_float(integers, 0.03, None, weights, 0.25, **options)
    scale, weights_scale = jnp.full((1, 1), 0.03, float32), jnp.full((1, 1), 0.25, float32)
    steps = (Dequantize(scale, weights_scale, None, np.dtype(np.float16)),)
    actual = tpu.integer_dot(FloatRows(x, scale), weights, steps, config=TILES[128], interpret=True)
    assert expected.dtype == actual.dtype
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.gate
@one_in(2, "transpose_b", [False, True], others="full")
def test_no_races_and_no_reads_out_of_bounds(transpose_b, capfd):
    """The blocks of columns come one after another: those after the first read what it has quantized."""
    interpret = pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2, random_seed=1)
    check(float32, (45, 300, 260), transpose_b, TILES[128], interpret)
    assert "race" not in "".join(capfd.readouterr()).lower()


def test_blocks_of_floats_are_loaded_once():
    """Beyond the first block of columns, the block stays, and the pipeline loads none."""
    spec = tpu._block_spec((2, 64, 512), (32, 0), (128, 2), held=3)
    blocks = [
        tuple(map(int, spec.index_map(1, jnp.int32(i), jnp.int32(j), jnp.int32(k)))) for i, j, k in np.ndindex(2, 3, 4)
    ]
    changes = [block for before, block in zip([None, *blocks], blocks, strict=False) if block != before]
    assert changes == [(1, i, k) for i in range(2) for k in range(4)]


def test_each_shard_of_a_mesh_is_quantized():
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("x",))
    x, weights = jax.ShapeDtypeStruct((64, 512), jnp.float32), jax.ShapeDtypeStruct((512, 128), jnp.int8)
    dot = functools.partial(multiply, implementation="mosaic_tpu")
    sharded = jax.shard_map(dot, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    text = jax.jit(sharded).trace(x, weights).lower(lowering_platforms=("tpu",)).as_text()
    assert "(tensor<64x512xf32>, tensor<512x128xi8>" in text


# ---------------------------------------------------------------------------------------------------------------------


def multiply(x, weights, implementation=None, zero_point=None):
    """The operators, with floats passed to the second."""
    scale = jquant.dynamic_quantize_linear(x, **BY_ROW).scale
    options = {"implementation": implementation, "feature_level": "EXTENDED"}
    return jquant.matmul_integer_to_float(x, scale, None, weights, 0.25, zero_point, **options)


def kernel_operands(m, k, n, a_dtype=jnp.bfloat16, b_dtype=jnp.int8, device_kind="TPU v6 lite", **options) -> list[str]:
    """The types of A and of B, of the one kernel in a program for a TPU."""
    shapes = jax.ShapeDtypeStruct((m, k), a_dtype), jax.ShapeDtypeStruct((k, n), b_dtype)
    device = jax.sharding.AbstractDevice(device_kind, 1, "tpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)):
        traced = jax.jit(functools.partial(multiply, **options)).trace(*shapes)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    (call,) = [line for line in text.splitlines() if "tpu_custom_call" in line]
    return re.findall(r"tensor<([x\w]+)>", call[call.rindex(": (") :])[:2]


@pytest.mark.parametrize(
    ("device_kind", "m", "k", "n", "a_dtype", "type_of_a"),
    [
        ("TPU v5 lite", 4096, 4096, 4096, jnp.float32, "f32"),
        ("TPU v5 lite", 16, 4096, 4096, jnp.bfloat16, "bf16"),
        # The scale of a row takes as many bytes as writing and reading 256 integers.
        ("TPU v5 lite", 4096, 256, 4096, jnp.bfloat16, "i8"),
        ("TPU v5 lite", 4096, 257, 4096, jnp.bfloat16, "bf16"),
        ("TPU v5 lite", 16384, 65536, 16384, jnp.float32, "f32"),
        # On v6e, half as many rows of float32 fit, for which the weights are read twice as often.
        ("TPU v6 lite", 4096, 4096, 4096, jnp.bfloat16, "bf16"),
        ("TPU v6 lite", 4096, 4096, 3712, jnp.float32, "f32"),
        ("TPU v6 lite", 4096, 4096, 3840, jnp.float32, "i8"),
        ("TPU v6 lite", 4096, 8192, 4096, jnp.float32, "f32"),
        ("TPU7x", 4096, 4096, 4096, jnp.float32, "f32"),
        ("TPU7x", 4096, 61440, 16384, jnp.float32, "i8"),  # whose integers do not fit for as many rows
        # Where the rows are one block, the two cores of v5p share the columns.
        ("TPU v5", 256, 4096, 4096, jnp.bfloat16, "i8"),
        ("TPU v5", 4096, 4096, 4096, jnp.bfloat16, "bf16"),
        ("TPU v5", 4096, 4096, 1792, jnp.float32, "f32"),
        ("TPU v5", 4096, 4096, 1920, jnp.float32, "i8"),
    ],
)
def test_quantizes_where_fewer_bytes_are_moved(device_kind, m, k, n, a_dtype, type_of_a):
    a, b = kernel_operands(m, k, n, a_dtype, device_kind=device_kind, implementation="mosaic_tpu")
    assert (a, b) == (f"{m}x{k}x{type_of_a}", f"{k}x{n}xi8")


@pytest.mark.parametrize(
    ("chip", "a_dtype", "inside", "before"),
    [
        ("v5e", jnp.bfloat16, 103, 134),
        ("v5e", jnp.float32, 136, 168),
        ("v6e", jnp.bfloat16, 69, 101),
        ("v6e", jnp.float32, 136, 134),
        ("7x", jnp.bfloat16, 103, 185),
        ("7x", jnp.float32, 136, 218),
    ],
)
def test_modelled_bytes(chip, a_dtype, inside, before):
    """The megabytes for the factors of 4096 x 4096 x 4096, quantized inside the kernel, and before it."""
    sizes, a_dtype, output = (4096, 4096, 4096), np.dtype(a_dtype), jnp.dtype(jnp.bfloat16)
    leaves = (4096, 1), (1, 4096)
    of_floats = config_for(chip, *sizes, output, ((4096, 1), *leaves), a_dtype)
    of_integers = config_for(chip, *sizes, output, leaves)
    models = (tpu_traffic.of_floats, of_floats), (tpu_traffic.of_integers, of_integers)
    assert [round(model(config, *sizes, a_dtype.itemsize) / 1e6) for model, config in models] == [inside, before]


def test_xla_quantizes_for_zero_points_and_float16():
    """Zero points of the weights need the sums of the integers, and Mosaic does not load float16."""
    named = {"implementation": "mosaic_tpu"}
    assert kernel_operands(512, 1024, 512, **named)[0] == "512x1024xbf16"
    for others in ({"a_dtype": jnp.float16}, {"b_dtype": jnp.uint8}, {"zero_point": 3}):
        assert kernel_operands(512, 1024, 512, **named, **others)[0] == "512x1024xi8"


def test_a_program_for_two_platforms_in_which_the_kernel_is_a_default(monkeypatch):
    """On a CPU, it has the same bits as ever; mapped and differentiated, too."""
    random = np.random.default_rng(0)
    x = random.normal(size=(3, 8, 320)).astype(float32)
    weights = random.integers(-128, 128, (320, 130), np.int8)

    def both(x):
        gradient = jax.vmap(jax.grad(lambda x: multiply(x, weights).sum()))(x)
        return jax.vmap(lambda x: multiply(x, weights))(x), gradient

    expected = jax.jit(both)(x)
    monkeypatch.setitem(implementations.DEFAULTS, "tpu", Implementation.MOSAIC_TPU)
    jax.clear_caches()
    program = jax.jit(lambda x: both(x)).trace(x)
    for actual, wanted in zip(program.lower().compile()(x), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)
    assert "tensor<1x24x320xf32>, tensor<1x320x130xi8>" in program.lower(lowering_platforms=("tpu",)).as_text()
    jax.clear_caches()
