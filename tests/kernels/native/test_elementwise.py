"""Sums and products of quantized arrays in one call of jquant-native: the bits of the formula, in every context."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import Mesh, PartitionSpec
from support.native import requires_native
from support.programs import together
from support.sampling import one_in

import jquant
from jquant.formulas import elementwise as formula
from jquant.kernels import elementwise, implementations
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

pytestmark = requires_native

CALL = "jquant_elementwise"
BYTES = np.int8, np.uint8
UNUSUAL = np.float32([0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 1e-38, 3e38, -0.5])
OPERATIONS = {"add": jquant.quantized_linear_add, "multiply": jquant.quantized_linear_multiply}


def draw(rng: np.random.Generator, name: str) -> tuple:
    """Operands of any ranks that broadcast, of both types, with zero points and without, and a type of the output.

    Scales are of any magnitude, some of them unusual; or such that many quotients are ties, but for what operations round.
    """

    def integers(shape, dtype):
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)

    def zero_point(dtype):
        return np.asarray(integers((), dtype)) if rng.integers(4) else None

    scales = (10.0 ** rng.uniform(*((-30, 30) if not rng.integers(4) else (-2, 0)), 3)).astype(np.float32)
    if rng.integers(2):
        scales[1] = scales[0] if name == "add" else scales[1]
        scales[2] = (scales[0] if name == "add" else scales[0] * scales[1]) * np.float32(2 * rng.integers(1, 4))
    else:
        scales = np.where(rng.integers(0, 8, 3) == 0, rng.choice(UNUSUAL, 3), scales)

    rank = rng.integers(6)
    sizes = rng.choice([0, 1, 2, 3, 7, 8, 17, 33], rank, p=[0.02, *[0.14] * 7]).tolist() if rng.integers(8) else [70_001]
    shapes = [
        tuple(1 if not rng.integers(4) else size for size in sizes)[rng.integers(2) * rng.integers(len(sizes) + 1) :]
        for _ in "ab"
    ]
    dtypes = [BYTES[rng.integers(2)] for _ in range(3)]
    a, b = (
        Quantized(integers(shape, dtype), np.asarray(scale), zero_point(dtype))
        for shape, scale, dtype in zip(shapes, scales, dtypes, strict=False)
    )
    return a, b, ScaleZeroPoint(np.asarray(scales[2]), zero_point(dtypes[2])), np.dtype(dtypes[2])


@one_in(3, "seed", range(6), others="full")
def test_bits(seed, count):
    """No element differs from the formula, which XLA compiles without the call."""
    rng = np.random.default_rng(seed)
    drawn = [(draw(rng, name), name) for name in OPERATIONS for _ in range(20)]

    def results(module):
        return together(
            [
                (lambda a, b, output, name=name, dtype=dtype: getattr(module, name)(*ranks(a, b), output, dtype), operands)
                for (*operands, dtype), name in drawn
            ]
        )

    def ranks(a, b):
        rank = max(np.ndim(a.values), np.ndim(b.values))
        return a.to_rank(rank), b.to_rank(rank)

    for ((a, b, *_), name), actual, expected in zip(drawn, results(elementwise), results(formula), strict=True):
        np.testing.assert_array_equal(
            actual, expected, f"{name} {a.values.shape} {b.values.shape} {a.scale} {b.scale}", strict=True
        )
    count("sums and products of quantized numbers", sum(np.size(x) for x in results(formula)))


RNG = np.random.default_rng(0)
A = RNG.integers(-128, 128, (2, 5, 33)).astype(np.int8)
B = RNG.integers(0, 256, (2, 5, 33)).astype(np.uint8)
PARAMETERS = np.float32(0.1), np.int8(3), np.float32(0.2), np.uint8(130), np.float32(0.3), np.int8(-7)


def call(name, a=A, b=B):
    a_scale, a_zero_point, b_scale, b_zero_point, *output = PARAMETERS
    return OPERATIONS[name](a, a_scale, a_zero_point, b, b_scale, b_zero_point, *output)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("b", [B, B[:, :1], B[:, :, :1], B[:1, :1, :1]], ids=lambda b: str(b.shape))
def test_programs_are_one_call(name, b):
    """And no loop beside it: with scales as constants, and as arguments."""
    constant = jax.jit(lambda a, b: call(name, a, b)).lower(A, b)
    a_scale, a_zero_point, b_scale, b_zero_point, *output = PARAMETERS
    argument = jax.jit(OPERATIONS[name]).lower(A, a_scale, a_zero_point, b, b_scale, b_zero_point, *output)
    for lowered in (constant, argument):
        text = lowered.compile().as_text()
        assert text.count(f'custom_call_target="{CALL}.1"') == 1
        assert "fusion(" not in text


@pytest.mark.parametrize(
    ("a", "b", "is_native"),
    [
        ((2, 3, 4, 50), (2, 3, 1, 50), True),
        ((2, 3, 4, 50), (1, 3, 1, 50), False),
        ((2, 3, 4, 50, 7), (1, 3, 4, 1, 1), True),
        ((600, 31), (31,), False),
        ((600, 32), (32,), True),
        ((500, 31), (31,), True),
        ((600, 31), (600, 31), True),
    ],
    ids=str,
)
def test_what_is_declined(a, b, is_native):
    """Arrays that broadcast in more than three turns, and many short rows, are XLA's."""
    a, b = (RNG.integers(0, 256, shape).astype(np.uint8) for shape in (a, b))
    program = jax.jit(lambda a, b: jquant.quantized_linear_multiply(a, 0.1, 3, b, 0.2, 7, 0.3, 5))
    assert (CALL in program.lower(a, b).as_text()) == is_native


@pytest.mark.parametrize("name", OPERATIONS)
def test_contexts(name):
    """`vmap` of one operand, of both and of scales, derivatives, no `jit`, one element."""
    expected = np.asarray(call(name))
    with jax.disable_jit():
        np.testing.assert_array_equal(call(name), expected)
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda a, b: call(name, a, b)))(A, B), expected)
    np.testing.assert_array_equal(
        jax.jit(jax.vmap(lambda a: call(name, a, B[0])))(A), np.stack([call(name, a, B[0]) for a in A])
    )
    np.testing.assert_array_equal(call(name, A[0, 0, 0], B[0, 0, 0]), expected[0, 0, 0])

    def of_scale(scale):
        return OPERATIONS[name](A, scale, PARAMETERS[1], B, *PARAMETERS[2:])

    scales = np.float32([0.1, 0.4])
    np.testing.assert_array_equal(jax.jit(jax.vmap(of_scale))(scales), np.stack([of_scale(scale) for scale in scales]))
    assert jax.jit(jax.grad(lambda scale: of_scale(scale).astype(jnp.float32).sum()))(scales[0]) == 0
    assert jax.jvp(of_scale, (scales[0],), (scales[1],))[1].dtype == jax.dtypes.float0


@pytest.mark.parametrize("name", OPERATIONS)
def test_meshes_and_export(name, monkeypatch):
    """Each shard of a `jax.shard_map` calls the library. No program for another machine, or without the library, does."""
    mesh, rows = Mesh(jax.devices()[:1], "x"), PartitionSpec("x")
    program = jax.jit(lambda a, b: call(name, a, b))
    mapped = jax.jit(jax.shard_map(lambda a, b: call(name, a, b), mesh=mesh, in_specs=(rows, rows), out_specs=rows))
    np.testing.assert_array_equal(mapped(A, B), program(A, B))
    assert CALL in mapped.lower(A, B).as_text()
    assert CALL not in export.export(program)(A, B).mlir_module()
    sizes = export.symbolic_shape("n, m, k")
    symbolic = export.export(program)(*(jax.ShapeDtypeStruct(sizes, x.dtype) for x in (A, B)))
    np.testing.assert_array_equal(symbolic.call(A, B), program(A, B))
    monkeypatch.setitem(implementations.DEFAULTS, "cpu", jquant.Implementation.XLA)
    assert CALL not in jax.jit(lambda a, b: call(name, a, b)).lower(A, B).as_text()
