"""Branches, loops and scans, nested, with carries of every type; and calls, which are written as what they call."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from support.sampling import one_in

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from jquant.onnx import export

from .same_results import assert_same, nodes, require_same

RNG = np.random.default_rng(6)
X = RNG.integers(-50, 50, (4, 3, 2)).astype(np.float32)


def number(value: int) -> np.ndarray:
    return np.array(value, np.int32)


SCANS = {
    "carry and rows": (lambda x: lax.scan(lambda c, x: (c + x, c), x[0], x), X),
    "backward": (lambda x: lax.scan(lambda c, x: (c + x, c * x), x[0], x, reverse=True), X),
    "rows alone": (lambda x: lax.scan(lambda _, x: (None, (x, -x)), None, x), X),
    "carry alone": (lambda x: lax.scan(lambda c, x: (c + x, None), x[0], x)[0], X),
    "nothing to go along": (lambda x: lax.scan(lambda c, _: (c * 2, c), x[0], None, length=3), X),
    "backward without": (lambda x: lax.scan(lambda c, _: (c * 2, c), x[0], None, length=3, reverse=True), X),
    "no step": (lambda x: lax.scan(lambda c, x: (c + x, c), x[0], x[:0]), X),
    "parameters": (lambda x: lax.scan(lambda c, p: (c * p, c + p), x[0], np.float32([2, 3, 5])), X),
    "repeated": (lambda x: lax.scan(lambda c, p: (c + p, p), x[0], jnp.broadcast_to(x[0], (3, 3, 2))), X),
    "types": (
        lambda x, n: lax.scan(lambda c, x: ((c[0] + x, ~c[1], c[2] + 1), c), (x[0], n > 0, n.astype(jnp.int8)), x),
        X,
        number(5),
    ),
    "counted": (lambda x: lax.fori_loop(0, 3, lambda i, c: c + x[i], x[0]), X),
    "closed over": (lambda x, y: lax.scan(lambda c, x: (c + x * y, c), x[0], x), X, X[1]),
    "in a scan": (lambda x: lax.scan(lambda c, x: lax.scan(lambda c, x: (c + x, c * x), c, x), x[0, 0], x), X),
}


@pytest.mark.parametrize("unroll", [True, False])
@one_in(3, "case", SCANS)
def test_scan(case, unroll):
    function, *arguments = SCANS[case]
    model = assert_same(function, arguments, unroll=unroll)
    assert ("Scan" in nodes(model)) is not (unroll or case == "no step")


LOOPS = {
    "open count": (lambda x, n: lax.fori_loop(0, n, lambda i, c: c + x[i], x[0]), X, number(3)),
    "no pass": (lambda x, n: lax.fori_loop(0, n, lambda i, c: c + x[i], x[0]), X, number(0)),
    "condition": (lambda x: lax.while_loop(lambda c: c[0].max() < 999, lambda c: (c[0] * 2, c[1] + 1), (x, 0)), X),
    "closed over": (lambda x, n: lax.while_loop(lambda c: c.max() < n, lambda c: c + jnp.abs(x) + 1, x), X, np.float32(90)),
    "exchange": (lambda x, n: lax.fori_loop(0, n, lambda _, c: (c[1], c[0], x), (x, -x, x)), X, number(3)),
    "mapped": (jax.vmap(lambda x: lax.while_loop(lambda c: c.max() < 99, lambda c: c * 2 + 9, jnp.abs(x))), X),
    "in a loop": (
        lambda x, n: lax.fori_loop(0, n, lambda i, c: lax.fori_loop(0, i, lambda j, c: c + x[j], c), x[0]),
        X,
        number(3),
    ),
    "in a scan": (
        lambda x, n: lax.scan(lambda c, x: (lax.fori_loop(0, n, lambda _, c: c + x, c), c), x[0], x),
        X,
        number(2),
    ),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "bool"])
def test_carries_of_every_type(dtype):
    """The operator set is one whose If, Loop and Scan take the type."""

    def function(x, n):
        x = x.astype(dtype)
        chosen = lax.cond(n > 1, lambda x: x, lambda x: jnp.flip(x), x)
        passed = lax.fori_loop(0, n, lambda _, c: jnp.roll(c, 1, 1), x)
        carried, rows = lax.scan(lambda c, row: (row, c), x[0], x)
        return [y.astype(np.float32) for y in (chosen, passed, carried, rows)]

    model = assert_same(function, (X, number(3)), unroll=False)
    assert {"If", "Loop", "Scan"} <= set(nodes(model))


@pytest.mark.parametrize("case", LOOPS)
def test_loops(case):
    function, *arguments = LOOPS[case]
    assert "Loop" in nodes(assert_same(function, arguments))


def any_branch(x: jax.Array, n: jax.Array) -> jax.Array:
    return lax.switch(
        n, [lambda x: x, lambda x: x * n.astype(x.dtype), lambda x: lax.cond(x.sum() > 0, lambda: -x, lambda: x)], x
    )


def several_results(x: jax.Array, n: jax.Array) -> dict:
    return lax.cond(n > 1, lambda: {"a": x, "b": x, "c": 3}, lambda: {"a": x + 1, "b": -x, "c": n})


@pytest.mark.parametrize("function", [any_branch, several_results])
def test_branches(function):
    """All numbers, also those that no branch has."""
    model = export(function, X, number(0))
    assert "If" in nodes(model)
    for choice in range(-1, 5):
        require_same(model, function, [X, number(choice)])


def test_branches_and_loops_in_each_other():
    def function(x: jax.Array, n: jax.Array) -> tuple:
        def step(carry: jax.Array, x: jax.Array) -> tuple:
            halved = lax.cond(x.sum() > 0, lambda: carry + x, lambda: lax.fori_loop(0, n, lambda _, c: c * 0.5, carry))
            return halved, lax.while_loop(lambda c: c < 99, lambda c: c * 2 + n, jnp.int32(1))

        return lax.scan(step, x[0], x)

    assert_same(function, [X, number(2)], unroll=False)
    assert_same(function, [X, number(2)])


DTYPES = [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.float16, np.float32]


@one_in(5, "dtype", DTYPES)
def test_types_of_carries(dtype):
    x = X.astype(dtype)
    assert_same(lambda x, n: lax.fori_loop(0, n, lambda _, c: (c[1], c[0]), (x, x[::1])), [x, number(3)])
    assert_same(lambda x: lax.scan(lambda c, x: (x, c), x[0], x), [x], unroll=False)
    assert_same(lambda x, n: lax.cond(n > 0, lambda: x, lambda: x[:]), [x, number(1)])


@one_in(3, "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_narrow_types_of_carries(dtype):
    def function(x: jax.Array, n: jax.Array) -> jax.Array:
        narrow = x.astype(dtype)
        narrow = lax.cond(n > 5, lambda: narrow, lambda: lax.fori_loop(0, n, lambda _, c: c, narrow))
        return narrow.astype(jnp.float32)

    assert_same(function, [X % 7, number(3)])


def test_known_conditions():
    """What decides is a parameter: there is no branch and no loop in the model."""

    def function(params: dict, x: jax.Array) -> jax.Array:
        x = lax.cond(params["flag"], lambda: x + 1, lambda: x * jnp.float32(3))
        count = lax.while_loop(lambda c: c[0] < params["limit"], lambda c: (c[0] * 2, c[1] + 1), (jnp.float32(1), 0))[1]
        doubled = lax.scan(lambda c, p: (c + p, c), params["start"], params["rows"])[1]
        return lax.switch(count, [jnp.negative, jnp.abs, lambda x: x * doubled.sum()], x)

    params = {"flag": False, "limit": 3.5, "start": np.float32(1), "rows": np.float32([1, 2])}
    model = export(function, params, X)
    assert nodes(model) == ["Mul", "Mul"]
    require_same(model, lambda x: function(params, x), [X])
    assert nodes(export(function, params, X, unroll=False)) == ["Mul", "Mul"]


def test_bodies_hold_what_they_need_alone():
    """No dead nodes in a body, and its constants stand once in the model."""

    def function(x: jax.Array, n: jax.Array) -> jax.Array:
        table = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
        return lax.cond(n > 0, lambda: (x * 2, x + table)[1], lambda: x - table)

    model = export(function, X, number(0))
    (node,) = [node for node in model.graph.node if node.op_type == "If"]
    assert sorted(body.op_type for attribute in node.attribute for body in attribute.g.node) == ["Add", "Sub"]
    assert [attribute.g.initializer for attribute in node.attribute] == [[], []]
    assert [tuple(tensor.dims) for tensor in model.graph.initializer].count((4, 3, 2)) == 1


@jax.custom_jvp
def tripled(x: jax.Array) -> jax.Array:
    return x * 3


tripled.defjvp(lambda x, dx: (tripled(*x), 3 * dx[0]))


@jax.custom_vjp
def halved(x: jax.Array) -> jax.Array:
    return x * 0.5


halved.defvjp(lambda x: (halved(x), None), lambda _, dx: (dx * 0.5,))
CALLS = {
    "jit": jax.jit(lambda x: x + 1),
    "jit in jit": jax.jit(lambda x: jax.jit(jax.jit(jnp.negative, inline=True))(x) + 1),
    "custom_jvp": tripled,
    "custom_vjp": halved,
    "checkpoint": jax.checkpoint(lambda x: x * 2),
    "checkpoint in scan": lambda x: lax.scan(jax.checkpoint(lambda c, x: (c + x, c)), x[0], x),
    "named_call": jax.named_call(lambda x: x + 2, name="two"),
    "closure": lambda x: jax.closure_convert(lambda x: x + 3, x)[0](x),
    "derivative": jax.grad(lambda x: (tripled(halved(x)) ** 2).sum()),
    "derivative of checkpoint": jax.grad(lambda x: jax.checkpoint(lambda x: (x * x).sum())(x)),
    "forward derivative": lambda x: jax.jvp(lambda x: tripled(x) * x, (x,), (x,)),
    "mapped": jax.vmap(tripled),
    "by platform": lambda x: lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x + 2),
    "map": lambda x: lax.map(lambda x: x.sum(), x),
    "cumulative": lambda x: lax.associative_scan(jnp.add, x),
}


@one_in(3, "case", CALLS)
def test_calls(case):
    assert_same(CALLS[case], [X])
