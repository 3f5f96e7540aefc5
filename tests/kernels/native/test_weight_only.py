"""The product with weights of few bits by jquant-native: exact sums, the error bound of others, and who calls it."""

import functools
import os
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from support.native import requires_native
from support.programs import together

import jquant
from jquant.arithmetic import subbyte
from jquant.cases import samples
from jquant.cases.blocks import packed
from jquant.kernels import implementations
from jquant.kernels.native import weight_only as native
from jquant.kernels.weights import StoredWeights, Weights
from jquant.modes import Implementation
from jquant.packed.block_matrix import PackedBlockMatrix

pytestmark = requires_native

CALL = "custom_call @jquant_weight_only"
FLOATS = np.dtype(np.float32), np.dtype(np.float16), jnp.dtype(jnp.bfloat16)
ROWS = 1, 2, 3, 4, 5, 11, 12, 13, 25, 200  # few, and tiles; the last are several parts
# K, N, and the size of blocks, which end at K or not; no run, no vector and no chunk of 256 rows divides all of these.
SIZES = [(64, 48, 16), (70, 33, 16), (300, 17, 32), (257, 130, 64), (600, 5, 128), (530, 31, 512), (16, 1, 16), (0, 3, 16)]
BYTE_SIZES = [(7, 20, 1), (63, 19, 3), (250, 35, 29), (600, 3, 509), (1, 1, 1), (520, 50, 257)]  # of matrices in bytes


class Form(NamedTuple):
    """A form of weights.

    Attributes:
      bits: of weights as onnxruntime stores them.
      dtype: of packed weights.
      beside: what they have beside scales: "zero_point", "floats" for zero points that are floats, or "minimum".
    """

    bits: int | None
    dtype: np.dtype | None
    beside: str | None

    def sizes(self):
        return SIZES + (BYTE_SIZES if self.dtype is not None else [])


FORMS = [Form(bits, None, beside) for bits in (2, 4, 8) for beside in (None, "zero_point", "floats")]
FORMS += [
    Form(None, jnp.dtype(dtype), beside)
    for dtype in (jnp.int4, jnp.uint4, jnp.int8, jnp.uint8)
    for beside in (None, "zero_point", "minimum")
]
every_form = pytest.mark.parametrize("form", FORMS, ids=str)


class Draw:
    """Draws operands of few bits, of which every sum is exact, or of as many bits as their types have."""

    def __init__(self, seed: int, exact: bool):
        self.rng, self.exact = np.random.default_rng(seed), exact

    def rows(self, m: int, k: int) -> np.ndarray:
        x = self.rng.integers(-4, 5, (m, k)) if self.exact else self.rng.normal(size=(m, k))
        return x.astype(np.float32)

    def scale(self, *shape: int) -> np.ndarray:
        sign = self.rng.choice([-1, 1], shape)
        return sign * (self.rng.choice([0.5, 1], shape) if self.exact else self.rng.uniform(1e-3, 1e-1, shape))

    def real(self, bits: int, *shape: int) -> np.ndarray:
        """Zero points or minima."""
        x = self.rng.uniform(0, 2**bits, shape)
        return np.rint(2 * x) / 2 if self.exact else x


def of_rows(x: np.ndarray, k: int, block_size: int) -> np.ndarray:
    """An array by block, as float32 for each row."""
    return np.repeat(x.astype(np.float32), block_size, axis=0)[:k]


def weights(
    draw: Draw, form: Form, k: int, n: int, block_size: int, dtype: np.dtype = FLOATS[0], last_scale: float | None = None
) -> tuple[Weights, np.ndarray]:
    """Weights with scales of `dtype`, the last of which is `last_scale`, and what they stand for, rounded by the formula."""
    rng, shape = draw.rng, (-(-k // block_size), n)
    bits = form.bits or jnp.iinfo(form.dtype).bits
    scale = draw.scale(*shape).astype(dtype)
    if last_scale is not None:
        scale[-1, -1] = last_scale
    zero_point = minimum = None
    if form.beside == "zero_point":
        lowest = jnp.iinfo(form.dtype).min if form.dtype is not None else 0
        zero_point = rng.integers(lowest, lowest + 2**bits, shape).astype(np.int8 if lowest else np.uint8)
    elif form.beside == "floats":
        zero_point = draw.real(bits, *shape).astype(dtype)
    elif form.beside == "minimum":
        minimum = draw.real(bits, *shape).astype(FLOATS[rng.integers(3)])
    if form.bits:
        data = samples.integers(rng, np.uint8, n, shape[0], block_size * bits // 8)
        result = StoredWeights(data, scale.T, None if zero_point is None else zero_point.T, bits, block_size)
        integers = subbyte.unpacked(data, bits).reshape(n, -1)[:, :k].T.astype(np.float32)
        zero = 2 ** (bits - 1) if zero_point is None else of_rows(zero_point, k, block_size)
    else:
        b = samples.integers(rng, form.dtype, k, n)
        result = packed(b, zero_point, scale, block_size, minimum)
        integers, zero = b.astype(np.float32), 0 if zero_point is None else of_rows(zero_point, k, block_size)
    real = (integers - zero) * of_rows(scale, k, block_size)
    return result, real if minimum is None else real + of_rows(minimum, k, block_size)


def multiply(a, matrix):
    return native.matmul(a, matrix, np.dtype(np.float32))


def products(form: Form, exact: bool, gate: bool):
    """Rows, weights, what these stand for, and the result of the library: with each number of rows, or with some."""
    draw = Draw(FORMS.index(form), exact)
    cases = []
    for number, (k, n, block_size) in enumerate(form.sizes()):
        matrix, real = weights(draw, form, k, n, block_size, FLOATS[number % 3])
        rows = ROWS if gate else (ROWS[number % 4], ROWS[4 + number % 6])
        cases += [(draw.rows(m, k), matrix, real) for m in rows]
    results = together([(multiply, (a, matrix)) for a, matrix, _ in cases])
    return [(a, real, np.asarray(result)) for (a, _, real), result in zip(cases, results, strict=True)]


@every_form
def test_exact_sums(gate, count, form):
    """Of numbers with so few bits that the order of a sum does not matter."""
    for a, real, result in products(form, True, gate):
        np.testing.assert_array_equal(result, (a.astype(np.float64) @ real).astype(np.float32))
        count("sums", result.size)


@every_form
def test_the_error_bound(gate, form):
    """The sums are within 5 units of rounding, which is far inside the documented bound."""
    for a, real, result in products(form, False, gate):
        exact, size = a.astype(np.float64) @ real, abs(a).astype(np.float64) @ abs(real)
        assert np.all(abs(result - exact) <= min(a.shape[1] + 2, 5) * 2.0**-23 * size)


@every_form
def test_a_scale_that_is_not_finite(form):
    """It shows in its own column alone, and the padding of the last block, of which there is one row, adds no NaN."""
    draw = Draw(99, True)
    with np.errstate(invalid="ignore"):
        matrix, real = weights(draw, form, 33, 5, 32, last_scale=np.inf)
        for m in (1, 3, 7):
            a = 5 + draw.rows(m, 33)
            expected = (a[:, :, None] * real).sum(1)
            assert not np.isfinite(expected[:, -1]).any()
            np.testing.assert_array_equal(multiply(a, matrix), expected)


THREADS = """
import hashlib
import jax.numpy as jnp, numpy as np
import jquant
from jquant.kernels.native import weight_only as native
from jquant.kernels.weights import StoredWeights

rng, digest = np.random.default_rng(0), hashlib.sha256()
scale = rng.uniform(0.1, 1, (16, 700)).astype(np.float32)
integers = rng.integers(-8, 8, (1000, 700))
matrices = [jquant.pack_matrix(integers.astype(dtype), scale=scale, block_size=64) for dtype in (jnp.int4, np.int8)]
for bits in (2, 4, 8):
    data = rng.integers(0, 256, (700, 16, 8 * bits), np.uint8)
    matrices.append(StoredWeights(jnp.asarray(data), jnp.asarray(scale.T), None, bits, 64))
for matrix in matrices:
    for m in (1, 3, 30, 250):
        a = jnp.asarray(rng.normal(size=(m, 1000)).astype(np.float32))
        digest.update(np.asarray(native.matmul(a, matrix, np.dtype(np.float32))).tobytes())
print(digest.hexdigest())
"""


def test_the_number_of_threads_makes_no_difference():
    """XLA has as many as NPROC says."""

    def start(threads):
        environment = {**os.environ, "NPROC": str(threads)}
        return subprocess.Popen([sys.executable, "-c", THREADS], env=environment, stdout=subprocess.PIPE, text=True)

    one, *others = [process.communicate(timeout=300)[0].strip() for process in map(start, (1, 2, 7))]
    assert len(one) == 64
    assert others == [one, one]


def test_repeated_calls_are_equal():
    draw = Draw(1, False)
    for form in FORMS[::4]:
        matrix, _ = weights(draw, form, 1000, 700, 64)
        for m in (1, 3, 30):
            a = draw.rows(m, 1000)
            program = jax.jit(multiply)
            first = np.asarray(program(a, matrix))
            for _ in range(5):
                np.testing.assert_array_equal(program(a, matrix), first)


def default(a, matrix):
    """`matmul_n_bits` of the weights."""
    if isinstance(matrix, StoredWeights):
        return jquant.matmul_n_bits(a, matrix.data, matrix.scale, matrix.zero_point, bits=matrix.bits)
    return jquant.matmul_n_bits(a, matrix)


@pytest.fixture(params=[Form(4, None, None), Form(None, jnp.dtype(jnp.uint4), "zero_point")], ids=str)
def operands(request, monkeypatch):
    """Operands of few bits, and their product; the library is the default, whatever the processor."""
    monkeypatch.setitem(implementations.DEFAULTS, "cpu", Implementation.NATIVE)
    draw = Draw(2, True)
    matrix, real = weights(draw, request.param, 70, 40, 32)
    a = draw.rows(6, 70)
    return a, jax.tree.map(jnp.asarray, matrix), (a @ real).astype(np.float32)


def calls(function, *arguments):
    """How often the compiled program calls the library."""
    return jax.jit(function).lower(*arguments).as_text().count(CALL)


def test_by_default(operands):
    a, matrix, expected = operands
    assert calls(default, a, matrix) == 1
    np.testing.assert_array_equal(default(a, matrix), expected)
    np.testing.assert_array_equal(default(a[0], matrix), expected[0])
    np.testing.assert_array_equal(default(a.reshape(2, 3, 70), matrix), expected.reshape(2, 3, 40))


def test_vmap_over_the_activations(operands):
    """All of them are the rows of one call."""
    a, matrix, expected = operands
    mapped = jax.vmap(default, in_axes=(0, None))
    assert calls(mapped, a.reshape(3, 2, 70), matrix) == 1
    np.testing.assert_array_equal(mapped(a.reshape(3, 2, 70), matrix), expected.reshape(3, 2, 40))


def test_vmap_over_the_weights_is_xlas(operands):
    a, matrix, expected = operands
    both = jax.tree.map(lambda x: jnp.stack([x, x]), matrix)
    mapped = jax.vmap(default, in_axes=(None, 0))
    assert calls(mapped, a, both) == 0
    np.testing.assert_array_equal(mapped(a, both), [expected, expected])


def test_scan_over_the_weights(operands):
    a, matrix, expected = operands
    both = jax.tree.map(lambda x: jnp.stack([x, x]), matrix)

    def layers(a, both):
        return lax.scan(lambda _, one: (None, default(a, one)), None, both)[1]

    for function in (layers, jax.checkpoint(layers)):
        assert calls(function, a, both) == 1
        np.testing.assert_array_equal(jax.jit(function)(a, both), [expected, expected])


def test_derivatives(operands):
    """They are exact as well: the derivative of a sum by the activations has the sums of the weights' rows."""
    a, matrix, _ = operands
    columns = default(np.eye(70, dtype=np.float32), matrix)
    for wrap in (lambda f: f, jax.checkpoint):
        gradient = jax.grad(wrap(lambda a: default(a, matrix).sum()))(a)
        np.testing.assert_array_equal(gradient, np.broadcast_to(np.asarray(columns).sum(1), a.shape))
        _, tangent = jax.jvp(wrap(lambda a: default(a, matrix)), (a,), (2 * a,))
        np.testing.assert_array_equal(tangent, 2 * default(a, matrix))


def test_debugging_modes(operands):
    a, matrix, expected = operands
    with jax.disable_jit():
        np.testing.assert_array_equal(default(a, matrix), expected)
    with jax.debug_nans(True), jax.debug_infs(True), jax.checking_leaks():
        np.testing.assert_array_equal(default(a, matrix), expected)


def test_on_each_shard(operands):
    a, matrix, expected = operands
    a = np.concatenate([a, a[:2]])
    expected = np.concatenate([expected, expected[:2]])
    mesh = jax.make_mesh((4,), ("m",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = jax.P("m"), jax.tree.map(lambda _: jax.P(), matrix)
    sharded = jax.shard_map(default, mesh=mesh, in_specs=specs, out_specs=jax.P("m"))
    assert calls(sharded, a, matrix) == 1
    np.testing.assert_array_equal(jax.jit(sharded)(a, matrix), expected)


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_partitioned_programs_are_xlas(operands, kind):
    a, matrix, expected = operands
    mesh = jax.make_mesh((2,), ("m",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        rows = jax.device_put(a, jax.NamedSharding(mesh, jax.P("m")))
        assert calls(default, rows, matrix) == 0
        np.testing.assert_array_equal(jax.jit(default)(rows, matrix), expected)


def test_exported_programs_are_xlas(operands):
    a, matrix, expected = operands
    (rows,) = export.symbolic_shape("rows")
    for size in (rows, 6):
        program = export.export(jax.jit(lambda a: default(a, matrix)))(jax.ShapeDtypeStruct((size, 70), jnp.float32))
        assert CALL not in program.mlir_module()
        np.testing.assert_array_equal(program.call(a), expected)


def test_what_the_library_does_not_support_is_xlas(operands):
    """A scale for each row, and products of bfloat16; `native.matmul` says so."""
    a, matrix, expected = operands
    inexact = functools.partial(jquant.matmul_n_bits, compute_dtype="bfloat16")
    if isinstance(matrix, PackedBlockMatrix):
        assert calls(inexact, a, matrix) == 0
        np.testing.assert_array_equal(inexact(a, matrix), expected)
        with pytest.raises(NotImplementedError, match="implementation native needs float32"):
            native.matmul(a, matrix, jnp.dtype(jnp.bfloat16))
        return
    by_row = functools.partial(jquant.matmul_n_bits, g_idx=np.arange(70, dtype=np.int32) // 32)
    assert calls(by_row, a, matrix.data, matrix.scale) == 0
    np.testing.assert_array_equal(by_row(a, matrix.data, matrix.scale), expected)


def test_where_it_is_not_the_default(operands, xla_by_default):
    a, matrix, expected = operands
    assert calls(lambda *operands: default(*operands), a, matrix) == 0
    np.testing.assert_array_equal(jax.jit(lambda *operands: default(*operands))(a, matrix), expected)


def test_other_platforms(operands):
    """A program for a GPU does not call a library of CPUs."""
    a, matrix, _ = operands
    text = jax.jit(default).trace(a, matrix).lower(lowering_platforms=("cuda",)).as_text()
    assert CALL not in text
