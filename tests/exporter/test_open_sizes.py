"""Symbolic sizes: open inputs, and what a graph computes from their shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.sampling import one_in

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant
from jquant.onnx import ModelError, export

from .same_results import require_same

RNG = np.random.default_rng(7)
B, T = jax.export.symbolic_shape("b, t")


def f32(*shape) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def i32(*shape) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)


def of_sizes(types: list, b: int, t: int) -> list[np.ndarray]:
    """Arrays of these types: whole numbers, and indices that may be out of bounds."""
    shapes = [
        tuple(int(jnp.asarray(s)) if isinstance(s, int) else s._evaluate({"b": b, "t": t}) for s in x.shape) for x in types
    ]
    return [RNG.integers(-3, 8, shape).astype(x.dtype) for shape, x in zip(shapes, types, strict=True)]


def sizes(model) -> list[list]:
    """Of the inputs and of the outputs."""
    values = (*model.graph.input, *model.graph.output)
    return [[size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim] for value in values]


CASES = {
    "elements": (lambda x, y: x * 2 + y, [f32(B, 4), f32(1, 4)]),
    "embedding": (lambda x, i: jnp.take(x, i, axis=0, mode="clip"), [f32(10, 3), i32(B, T)]),
    "filled": (lambda x, i: jnp.take(x, i, axis=0), [f32(B, 3), i32(T)]),
    "twice as many": (lambda x: jnp.concatenate([x, x]).reshape(-1) + 1, [f32(B, 4)]),
    "half as many": (lambda x: x[: x.shape[0] // 2] * x.shape[0], [f32(B, 4)]),
    "product": (lambda x: x.reshape(-1, 4) + x.shape[1], [f32(B, T, 4)]),
    "square": (lambda x: jnp.zeros((x.shape[0], x.shape[0])).reshape(-1) + x[0, 0], [f32(B, 4)]),
    "rest": (lambda x: jnp.zeros((x.shape[0] % 3 + 1,)) + x[0, 0], [f32(B, 4)]),
    "difference": (lambda x: jnp.zeros((x.shape[0] * 2 - 1, 2)) + x[:1, :2], [f32(B, 4)]),
    "larger": (lambda x, y: jnp.zeros((jax.core.max_dim(x.shape[0], 3),)) + y[0], [f32(B, 4), f32(T)]),
    "smaller": (lambda x, y: jnp.zeros((jax.core.min_dim(x.shape[0], 3),)) + y[0], [f32(B, 4), f32(T)]),
    "count": (lambda x: jnp.arange(x.shape[0]) * x.shape[1], [f32(B, T)]),
    "weighted": (lambda x: x.sum(0) * x.shape[0], [f32(B, 4)]),
    "slice": (lambda x, i: lax.dynamic_slice(x, (i, i), (x.shape[0] // 2, 3)), [f32(B, 4), i32()]),
    "cache": (lambda x, y, i: lax.dynamic_update_slice(x, y, (0, 0, i, 0)), [f32(B, 2, T, 4), f32(B, 2, 1, 4), i32()]),
    "along": (lambda x, i: jnp.take_along_axis(x, i, 1), [f32(B, T, 4), i32(B, 2, 1)]),
    "mapped": (jax.vmap(lambda x, i: jnp.take(x, i, axis=1, mode="clip")), [f32(B, 3, 4), i32(B, T)]),
    "set": (lambda x, i: x.at[i].set(1.0), [f32(B, 4), i32(T)]),
    "added": (lambda x, i: x.at[:, i].add(1.0), [f32(B, 4), i32(T)]),
    "scan": (lambda x: lax.scan(lambda c, x: (c + x, c), x[0], x), [f32(B, 4)]),
    "loop": (lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i], x[0]), [f32(B, 4)]),
    "open carry": (lambda x, n: lax.fori_loop(0, n, lambda _, c: c + x.shape[0], x), [f32(B, 4), i32()]),
    "branches": (lambda x, n: lax.cond(n > 0, lambda: x * x.shape[0], lambda: x - 1), [f32(B, 4), i32()]),
    "output": (lambda x: jnp.broadcast_to(x[:1], x.shape), [f32(B, 4)]),
    "multiple": (lambda x: x.reshape(2, -1, 4) * 2, [f32(2 * B, 4)]),
    "line": (lambda x: jnp.zeros((x.shape[0] - 1) // 3) + x[0], [f32(3 * B + 1)]),
}


@one_in(3, "case", CASES)
def test_sizes(case):
    """One model, for several sizes."""
    function, types = CASES[case]
    model = export(function, *types)
    for b, t in [(2, 3), (5, 1)]:
        require_same(model, function, of_sizes(types, b, t))


def test_sizes_of_other_integer_types():
    assert sizes(export(lambda x: x + 1, f32(np.int64(2), B, 0))) == [[2, "b", 0]] * 2


def test_names_of_sizes():
    model = export(lambda x, y: (x.reshape(-1), x @ y), f32(B, T), f32(T, 3))
    assert sizes(model) == [["b", "t"], ["t", 3], ["b*t"], ["b", 3]]


def test_constraints():
    """JAX decides by them; the model does not check them."""
    (n,) = jax.export.symbolic_shape("n", constraints=["n >= 2", "n <= 8"])
    function = lambda x: lax.slice_in_dim(x, 0, 2)  # noqa: E731
    model = export(function, f32(n, 4))
    require_same(model, function, [np.ones((5, 4), np.float32)])
    require_same(model, function, [np.ones((9, 4), np.float32)])


def test_quantized():
    (n,) = jax.export.symbolic_shape("n")
    weights = RNG.integers(-128, 128, (8, 4), np.int8)

    def function(x: jax.Array) -> jax.Array:
        x = jquant.quantize_linear(x, np.float32(0.1), np.int8(0))
        return jquant.matmul_integer(x, weights)

    model = export(function, f32(n, 8))
    require_same(model, function, [RNG.normal(size=(3, 8)).astype(np.float32)])


def test_size_that_no_input_has():
    n, m = jax.export.symbolic_shape("n, m")
    with pytest.raises(ModelError, match=r"reshape.*: no input has the size n, or a multiple of it"):
        export(lambda x: x.reshape(n, m) + 1, f32(n * m))
