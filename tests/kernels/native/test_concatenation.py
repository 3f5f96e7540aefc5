"""Quantized arrays joined in one call of jquant-native: the bits of the formula, in every context."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, Mesh, PartitionSpec
from support.native import requires_native
from support.programs import together
from support.sampling import one_in

import jquant
from jquant.cases import samples
from jquant.formulas import concatenation as formula
from jquant.kernels import concatenation, implementations
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

pytestmark = requires_native

CALL = "jquant_concatenate"
BYTES = np.int8, np.uint8
UNUSUAL = np.float32([0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 1e-38, 3e38, -0.5])


def draw(rng: np.random.Generator) -> tuple[tuple, int, np.dtype]:
    """Arrays of one rank and their quantization, that of the output, an axis, and a type of the output.

    Scales are of any magnitude, some of them unusual; or such that many quotients are ties, but for what operations round.
    """

    def zero_point(dtype):
        return np.asarray(samples.integers(rng, dtype)) if rng.integers(4) else None

    rank, count = rng.integers(1, 5), rng.integers(1, 6)
    axis = -int(rng.integers(1, rank + 1))
    sizes = rng.choice([0, 1, 2, 3, 7, 8, 33], (count, rank), p=[0.02, 0.15, 0.15, 0.17, 0.17, 0.17, 0.17])
    if not rng.integers(8):
        sizes[:, axis] = rng.integers(1, 20_000, count)
        sizes[:, np.arange(rank) != rank + axis] = rng.choice([1, 2])
    beside = sizes[0].copy()
    output_scale = np.float32(10.0 ** rng.uniform(-3, 1)) if rng.integers(8) else rng.choice(UNUSUAL)
    dtypes = [BYTES[rng.integers(2)] for _ in range(count + 1)]
    arrays = []
    for size, dtype in zip(sizes[:, axis], dtypes, strict=False):
        beside[axis] = size
        fraction = output_scale / np.float32(2 * rng.integers(1, 10))
        scale = rng.choice([fraction, fraction, 10.0 ** rng.uniform(-30, 30), rng.choice(UNUSUAL)])
        arrays.append(Quantized(samples.integers(rng, dtype, *beside), np.asarray(scale, np.float32), zero_point(dtype)))
    output = ScaleZeroPoint(np.asarray(output_scale), zero_point(dtypes[-1]))
    return (arrays, output), axis, np.dtype(dtypes[-1])


@one_in(3, "seed", range(6), others="full")
def test_bits(seed, count):
    """No element differs from the formula, which XLA compiles without the call."""
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        drawn = [draw(rng) for _ in range(40)]

    def results(module):
        return together(
            [
                (lambda arrays, output, axis=axis, dtype=dtype: module.concatenate(arrays, output, axis, dtype), operands)
                for operands, axis, dtype in drawn
            ]
        )

    for ((arrays, output), axis, _), actual, expected in zip(drawn, results(concatenation), results(formula), strict=True):
        shapes = [x.values.shape for x in arrays]
        np.testing.assert_array_equal(actual, expected, f"{shapes} {axis} {[x.scale for x in arrays]} {output}", strict=True)
    count("joined quantized numbers", sum(np.size(x) for x in results(formula)))


RNG = np.random.default_rng(0)
A, B, C = (samples.integers(RNG, dtype, 2, size, 33) for size, dtype in ((5, np.int8), (2, np.uint8), (1, np.int8)))
SCALES, ZERO_POINTS = np.float32([0.1, 0.2, 0.5]), (np.int8(3), np.uint8(130), None)
OUTPUT = np.float32(0.3), np.int8(-7)


def call(*arrays, scales=SCALES, axis=-2):
    return jquant.quantized_linear_concat(list(zip(arrays, scales, ZERO_POINTS, strict=False)), *OUTPUT, axis=axis)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_programs_are_one_call(axis):
    """And no loop or memory beside it: with scales as constants, and as arguments."""
    arrays = [np.swapaxes(x, 1, axis) for x in (A, B, C)]
    constant = jax.jit(lambda *arrays: call(*arrays, axis=axis)).lower(*arrays)
    triples = list(zip(arrays, SCALES, ZERO_POINTS, strict=True))
    argument = jax.jit(lambda triples, output: jquant.quantized_linear_concat(triples, *output, axis=axis)).lower(
        triples, OUTPUT
    )
    for lowered in (constant, argument):
        compiled = lowered.compile()
        text = compiled.as_text()
        assert text.count(f'custom_call_target="{CALL}.1"') == 1
        assert "fusion(" not in text
        assert "concatenate(" not in text
        assert compiled.memory_analysis().temp_size_in_bytes <= 64  # the constants


@pytest.mark.parametrize(
    ("shape", "axis", "is_native"),
    [
        ((4097, 3), 1, False),
        ((4096, 3), 1, True),
        ((4097, 4), 1, True),
        ((4097, 1, 2, 2), 1, True),
        ((4097, 3), 0, True),
    ],
    ids=str,
)
def test_what_is_declined(shape, axis, is_native):
    """Many short rows are XLA's."""
    arrays = [samples.integers(RNG, np.uint8, *shape) for _ in range(2)]
    program = jax.jit(lambda *arrays: jquant.quantized_linear_concat([(x, 0.1, 3) for x in arrays], 0.3, 5, axis=axis))
    assert (CALL in program.lower(*arrays).as_text()) == is_native


def test_contexts():
    """`vmap` of one array, of all and of scales, derivatives, no `jit`."""
    expected = np.asarray(call(A, B, C))
    with jax.disable_jit():
        np.testing.assert_array_equal(call(A, B, C), expected)
    of_rows = jax.jit(jax.vmap(call))
    of_columns = jax.jit(jax.vmap(lambda *arrays: call(*arrays, axis=-1), in_axes=2, out_axes=2))
    for mapped in (of_rows, of_columns):
        assert CALL in mapped.lower(A, B, C).as_text()
        np.testing.assert_array_equal(mapped(A, B, C), expected)
    of_one = jax.jit(jax.vmap(lambda a: call(a, B[0], C[0])))
    assert CALL in of_one.lower(A).as_text()
    np.testing.assert_array_equal(of_one(A), np.stack([call(a, B[0], C[0]) for a in A]))

    def of_scale(scale):
        return call(A, B, C, scales=(SCALES[0], scale, SCALES[2]))

    scales = np.float32([0.1, 0.4])
    np.testing.assert_array_equal(jax.jit(jax.vmap(of_scale))(scales), np.stack([of_scale(scale) for scale in scales]))
    assert jax.jit(jax.grad(lambda scale: of_scale(scale).astype(jnp.float32).sum()))(scales[0]) == 0
    assert jax.jvp(of_scale, (scales[0],), (scales[1],))[1].dtype == jax.dtypes.float0


def test_meshes_and_export(monkeypatch):
    """Each shard of a `jax.shard_map` calls the library. No program for another machine, or without the library, does."""
    rows = PartitionSpec("x")
    program, expected = jax.jit(call), np.asarray(call(A, B, C))
    mesh = Mesh(jax.devices()[:1], "x")
    mapped = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=rows, out_specs=rows))
    np.testing.assert_array_equal(mapped(A, B, C), expected)
    assert CALL in mapped.lower(A, B, C).as_text()
    assert CALL not in export.export(program)(A, B, C).mlir_module()
    n, k, m = export.symbolic_shape("n, k, m")
    shapes = [(n, k, 33), (n, m, 33), (n, 1, 33)]
    symbolic = export.export(program)(*(jax.ShapeDtypeStruct(s, x.dtype) for s, x in zip(shapes, (A, B, C), strict=True)))
    np.testing.assert_array_equal(symbolic.call(A, B, C), expected)
    monkeypatch.setitem(implementations.DEFAULTS, "cpu", jquant.Implementation.XLA)
    assert CALL not in jax.jit(call).lower(A, B, C).as_text()


def test_explicit_axes():
    """Arrays that are split, beside one that `jax.vmap` does not map."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        a, c = (jax.device_put(x, PartitionSpec("x")) for x in (A, C))
        joined = jax.jit(jax.vmap(lambda a, c: call(a, B[0], c)))(a, c)
        assert jax.typeof(joined).sharding.spec[0] == "x"
        assert jax.typeof(jax.jit(call)(a, jax.device_put(B, PartitionSpec("x")))).sharding.spec[0] == "x"
    np.testing.assert_array_equal(joined, np.stack([call(a, B[0], c) for a, c in zip(A, C, strict=True)]))
