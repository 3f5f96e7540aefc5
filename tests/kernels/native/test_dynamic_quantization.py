"""Quantization by ranges in one call of jquant-native: the bits of the formula, in every context, and who calls it."""

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
from jquant.formulas import dynamic_quantization as formula
from jquant.kernels import dynamic_quantization, implementations

pytestmark = requires_native

CALL = "jquant_dynamic_quantize"
FLOATS = np.dtype(np.float32), np.dtype(np.float16), jnp.dtype(jnp.bfloat16)
SHAPES = [(7,), (1,), (0,), (3, 0), (5, 33), (64, 100), (2, 3, 40), (3, 70_000), (1, 70_001), (300, 51), ()]
UNUSUAL = np.float32([0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1e-38, -1e-38, 3e38, -3e38, 1.17e-38, 5e-36, 1])
SUBNORMAL = UNUSUAL[[0, 1, 5, 6, 7, 8, 11]]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Values of every magnitude, of both signs or of one, or none that is normal; some of them unusual."""
    x = rng.normal(size=shape) * 10.0 ** rng.integers(-38, 38)
    kinds = (lambda x: x), np.abs, lambda x: -np.abs(x), np.zeros_like, lambda x: rng.choice(SUBNORMAL, x.shape)
    x = np.asarray(kinds[rng.integers(len(kinds))](x), np.float32)
    if x.size and rng.integers(2):
        x.reshape(-1)[rng.integers(0, x.size, 3)] = rng.choice(UNUSUAL, 3)
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def quantize(x, axes, symmetric, dtype, function=dynamic_quantization.quantize):
    return function(x, None, axes, symmetric, np.dtype(dtype))


def assert_same(actual, expected, title: str) -> None:
    for mine, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=title, strict=True)


def cases() -> list[tuple]:
    """Along the last axis, the last two, or all; both rules, both types."""
    found = []
    for shape in SHAPES:
        along = {None, (len(shape) - 1,), tuple(range(max(0, len(shape) - 2), len(shape)))} if shape else {None, ()}
        found += [
            (shape, axes, symmetric, dtype) for axes in along for symmetric in (False, True) for dtype in (np.int8, np.uint8)
        ]
    return found


@one_in(3, "seed", range(6), others="full")
def test_bits(seed, count):
    """No element differs from the formula, which XLA compiles without the call."""
    rng = np.random.default_rng(seed)
    drawn = [(draw(rng, case[0], FLOATS[rng.integers(3)]), *case[1:]) for case in cases()]
    both = [
        together([(lambda x, rest=rest, f=f: quantize(x, *rest, f), (x,)) for x, *rest in drawn])
        for f in (dynamic_quantization.quantize, formula.quantize)
    ]
    for (x, *rest), actual, expected in zip(drawn, *both, strict=True):
        assert_same(actual, expected, f"{x.dtype}{x.shape} {rest}")
    count("elements quantized by their ranges", sum(x.size for x, *_ in drawn))


X = np.random.default_rng(0).normal(size=(4, 6, 33)).astype(np.float32)


def by_operator(x, **options):
    return jquant.dynamic_quantize_linear(x, feature_level="EXTENDED", **options)


@pytest.mark.parametrize("options", [{}, {"axis": -1, "symmetric": True, "output_dtype": "INT8"}, {"axis": (1, 2)}], ids=str)
def test_programs_are_one_call(options):
    """And no loop beside it; not where a mask counts some values alone, nor along an axis that is not among the last."""
    text = jax.jit(lambda x: by_operator(x, **options)).lower(X).compile().as_text()
    assert text.count(f'custom_call_target="{CALL}.1"') == 1
    assert "fusion(" not in text
    for other in ({"where": np.bool_([[[True]]])}, {"axis": 0}):
        assert CALL not in jax.jit(lambda x, other=other: by_operator(x, **options | other)).lower(X).as_text()


def test_contexts():
    """`vmap` of `vmap`, derivatives, `jax.checkpoint`, no `jit`, and without the library."""
    expected = [quantize(X, (2,), True, np.int8, formula.quantize), quantize(X[0], None, False, np.uint8, formula.quantize)]
    assert_same(quantize(X, (2,), True, np.int8), expected[0], "eager")
    with jax.disable_jit():
        assert_same(quantize(X[0], None, False, np.uint8), expected[1], "without jit")
    mapped = jax.jit(jax.vmap(jax.vmap(lambda x: quantize(x, (0,), True, np.int8))))(X)
    assert_same([mapped[0], mapped[1]], [expected[0].output, expected[0].scale], "vmap")
    slopes = [
        jax.jit(jax.grad(lambda x, f=f: (quantize(x, (2,), True, np.int8, f).scale ** 2).sum()))(X)
        for f in (dynamic_quantization.quantize, formula.quantize)
    ]
    assert_same(*slopes, "derivatives")
    kept = jax.jit(jax.grad(jax.checkpoint(lambda x: quantize(x, (2,), True, np.int8).scale.sum())))(X)
    assert np.count_nonzero(kept)


def test_meshes_and_export():
    """Each shard of a `jax.shard_map` calls the library. No program for another machine, or over several devices, does."""
    mesh = Mesh(jax.devices()[:1], "x")
    rows = PartitionSpec("x")
    mapped = jax.jit(jax.shard_map(lambda x: by_operator(x, axis=-1).output, mesh=mesh, in_specs=rows, out_specs=rows))
    np.testing.assert_array_equal(mapped(X), by_operator(X, axis=-1).output)
    assert CALL in mapped.lower(X).as_text()
    exported = export.export(jax.jit(lambda x: by_operator(x, axis=-1).output))(X)
    assert CALL not in exported.mlir_module()


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(implementations.DEFAULTS, "cpu", jquant.Implementation.XLA)
    assert CALL not in jax.jit(lambda x: by_operator(x, axis=-1)).lower(X).as_text()
