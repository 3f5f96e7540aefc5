"""Every operator under every JAX transformation: the bits of the formula each time."""

import itertools
import pathlib
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.comparison import assert_equal
from support.layouts import kinds
from support.sampling import one_in

import jquant
from jquant import cases

COUNT = 3  # calls that a transformation batches
every_case = pytest.mark.parametrize("name", cases.CASES)
one_case_in_five = one_in(5, "name", cases.CASES, first=1, gate=4)


def one_case_in_seven(first: int):
    """For transformations that repeat or split what `jit` compiles; the gate runs a third of the cases of each."""
    return one_in(7, "name", cases.CASES, first=first, gate=4)


def drawn(case: cases.Case) -> list[tuple]:
    """Arguments for `COUNT` calls."""
    return [case.arguments(seed) for seed in range(COUNT)]


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


@one_in(5, "name", cases.CASES)
def test_jit(name):
    """Other values do not compile another program."""
    case = cases.CASES[name]
    chex.clear_trace_counter()  # which identifies a function by the line that defines it
    function = jax.jit(chex.assert_max_traces(lambda *arguments: case.function(*arguments), n=1))
    for arguments in drawn(case):
        assert_equal(function(*arguments), case.formula(*arguments))


def subsets(count: int, *, full: bool) -> list[tuple[int, ...]]:
    """The arguments that have a batch: the first, or all; in the full run every subset of up to four, or each alone."""
    if not full:
        return [(0,), tuple(range(count))]
    sizes = range(1, count + 1) if count <= 4 else (1, count)
    return [subset for size in sizes for subset in itertools.combinations(range(count), size)]


@one_case_in_five
def test_vmap(name, full):
    """Over subsets of the arguments."""
    case, calls = cases.CASES[name], drawn(cases.CASES[name])
    arguments = [index for index, value in enumerate(calls[0]) if value is not None]
    choices = [{arguments[index] for index in subset} for subset in subsets(len(arguments), full=full)]

    def picked(choice, batched, shared):
        return [batched[index] if index in choice else value for index, value in enumerate(shared)]

    @jax.jit
    def every_subset(batched, shared):
        axes = [[0 if index in choice else None for index in range(len(shared))] for choice in choices]
        mapped = [jax.vmap(case.function, in_axes=tuple(axis)) for axis in axes]
        return [function(*picked(choice, batched, shared)) for function, choice in zip(mapped, choices, strict=True)]

    outputs = every_subset(stacked(calls), calls[0])
    for choice, output in zip(choices, outputs, strict=True):
        expected = stacked([case.formula(*picked(choice, call, calls[0])) for call in calls])
        assert_equal(output, expected, f"arguments {sorted(choice)} have a batch")


@one_case_in_seven(0)
def test_scan(name):
    case, calls = cases.CASES[name], drawn(cases.CASES[name])
    _, outputs = jax.jit(lambda xs: lax.scan(lambda carry, x: (carry, case.function(*x)), 0, xs))(stacked(calls))
    assert_equal(outputs, stacked([case.formula(*call) for call in calls]))


@one_case_in_seven(1)
def test_remat(name):
    case = cases.CASES[name]
    arguments = case.arguments()
    assert_equal(jax.jit(jax.checkpoint(case.function))(*arguments), case.formula(*arguments))


@every_case
def test_eval_shape(name):
    case = cases.CASES[name]
    arguments = case.arguments()
    shapes = jax.eval_shape(case.function, *arguments)
    jax.tree.map(lambda x, y: chex.assert_equal((x.shape, x.dtype), (y.shape, y.dtype)), shapes, case.formula(*arguments))


def by_rows(case: cases.Case, arguments, results):
    """The specs of the arguments and results: rows are split over the devices, and all else is replicated."""
    in_specs = tuple(P("x") if index in case.rows else P() for index in range(len(arguments)))
    return in_specs, jax.tree.map(lambda x: P("x") if x.shape[:1] == (cases.ROWS,) else P(), results)


@one_case_in_seven(2)
def test_shard_map(name):
    case = cases.CASES[name]
    arguments = case.arguments()
    expected = case.formula(*arguments)
    in_specs, out_specs = by_rows(case, arguments, expected)
    if case.collectives:  # a shard's result is no part of the whole result, so everything is replicated
        in_specs, out_specs = jax.tree.map(lambda _: P(), (in_specs, out_specs))
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(case.function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
    assert_equal(jax.jit(mapped)(*arguments), expected)


@one_case_in_seven(3)
@kinds
def test_mesh(name, kind):
    """Under plain jit, with no collectives other than those that the case names."""
    case = cases.CASES[name]
    arguments = case.arguments()
    expected = case.formula(*arguments)
    in_specs, _ = by_rows(case, arguments, expected)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    split = [
        jax.tree.map(lambda x, spec=spec: jax.device_put(x, NamedSharding(mesh, spec)), value)
        for value, spec in zip(arguments, in_specs, strict=True)
    ]
    with jax.set_mesh(mesh):
        program = jax.jit(case.function).lower(*split).compile()
        output = program(*split)
    assert_equal(output, expected)
    assert tuple(collective.kind for collective in collectives(program.as_text())) == case.collectives


@one_case_in_five
def test_derivative(name):
    """Forward, reverse and second derivatives; tangents of integers are JAX's zeros, of dtype float0."""
    case = cases.CASES[name]
    arguments, expected = case.arguments(), case.formula(*case.arguments())

    def tangent(x):
        return np.ones_like(x) if is_float(x) else np.zeros(x.shape, jax.dtypes.float0)

    def assert_is_tangent(x, dot):
        assert dot.shape == x.shape
        assert dot.dtype == (x.dtype if is_float(x) else jax.dtypes.float0)

    dots, cotangents = jax.tree.map(tangent, arguments), jax.tree.map(tangent, expected)

    @jax.jit  # one program for all three, because starting the compiler takes longer than compiling any of them
    def derivatives(*arguments):
        outputs, pull = jax.vjp(case.function, *arguments)

        def forward(*arguments):
            return jax.jvp(case.function, arguments, dots)

        return forward(*arguments), (outputs, pull(cotangents)), jax.jvp(lambda *x: forward(*x)[0], arguments, dots)[0]

    (forward, output_dots), (reverse, argument_dots), second = derivatives(*arguments)
    jax.tree.map(assert_is_tangent, expected, output_dots)
    jax.tree.map(assert_is_tangent, arguments, argument_dots)
    for outputs in (forward, reverse, second):
        assert_equal(outputs, expected)


class TestDerivatives:
    """The values of derivatives."""

    def test_of_dequantize_linear_in_its_scale(self):
        x, zero_point = np.int8([-128, 3, 127]), np.int8(5)
        gradient = jax.jacrev(lambda scale: jquant.dequantize_linear(x, scale, zero_point))(np.float32(0.3))
        np.testing.assert_array_equal(gradient, np.float32([-133, -2, 122]))
        gradient = jax.grad(lambda scale: jquant.dequantize_linear(x, scale, zero_point).sum())(np.full(3, 0.3, np.float32))
        np.testing.assert_array_equal(gradient, np.float32([-133, -2, 122]))

    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    def test_of_clip(self, dtype):
        """As in CLIP_GRAD, 0 at both bounds and beyond them."""
        x = np.array([-np.inf, -1, 0, 0.5, 2, 3, np.inf, np.nan], dtype)
        gradient = jax.grad(lambda x: jquant.clip(x, 0, 2).sum())(x)
        np.testing.assert_array_equal(gradient, np.array([0, 0, 0, 1, 0, 0, 0, 1], dtype), strict=True)
        forward = jax.jvp(lambda x: jquant.clip(x, 0, 2), (x,), (np.ones_like(x),))[1]
        np.testing.assert_array_equal(forward, gradient, strict=True)
        gradient = jax.grad(lambda x: jquant.clip(x, 0, 2, scale_bias=(4, 1)).sum())(x)
        np.testing.assert_array_equal(gradient, np.array([0, 0, 4, 0, 0, 0, 0, 4], dtype), strict=True)

    def test_of_clip_in_its_bounds(self):
        """1 where the result is that bound."""
        x = np.float32([-1, 0, 0.5, 2, 3])
        gradient = jax.grad(lambda low, high: jquant.clip(x, low, high).sum(), argnums=(0, 1))
        assert gradient(0.0, 2.0) == (2, 2)
        assert gradient(2.0, 0.0) == (5, 0)  # min > max: the result is min everywhere

    def test_of_a_quotient(self):
        def scale(low):  # SCALED's maximum, a quotient, for a range whose lower bound determines the scale
            return jquant.quantize(np.zeros(1, np.float32), low, 1.0, "qint8", mode="SCALED").output_max

        assert scale(-8.0) == 7.9375
        assert jax.grad(scale)(-8.0) == -0.9921875


def test_the_page():
    """`docs/operators.md` names the transformations that are tested here."""
    text = pathlib.Path(__file__).parents[1].joinpath("docs/operators.md").read_text()
    (transformations,) = re.findall(r"^Every operator supports (.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(\w+)`", transformations)) | {"derivative", "mesh"}
    assert named - {"export"} == {name.removeprefix("test_") for name in globals() if name.startswith("test_")} - {
        "the_page"
    }
