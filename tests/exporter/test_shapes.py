"""Changes of shape, and parts of arrays, exported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from jquant.onnx.exporter import export

from .running import FLOATS, INTEGERS, assert_exported, in_type, numbers, run, sample

MOVES = {
    "reshape": lambda x: x.reshape(4, 6),
    "transpose": lambda x: x.transpose(2, 0, 1),
    "broadcast": lambda x: jnp.broadcast_to(x[:, None], (2, 5, 3, 4)),
    "concatenate": lambda x: jnp.concatenate([x, x[:, :1]], 1),
    "slice": lambda x: x[:1, ::2, 1:],
    "slices to the end": lambda x: x[..., 1::3],
    "reverse": lambda x: lax.rev(x, (0, 2)),
    "pad": lambda x: lax.pad(x, x[0, 0, 0], ((1, 2, 0), (0, 0, 0), (3, 0, 0))),
    "take off": lambda x: lax.pad(x, jnp.zeros((), x.dtype), ((-1, 0, 0), (2, -1, 0), (-2, -1, 0))),
    "pad between": lambda x: lax.pad(x, jnp.ones((), x.dtype), ((0, 0, 2), (1, -1, 1), (-1, 2, 3))),
    "pad with itself": lambda x: jnp.pad(x, ((0, 0), (1, 1), (2, 0)), mode="reflect"),
    "tile": lambda x: jnp.tile(x, (2, 1, 3)),
    "tile to more dimensions": lambda x: jnp.tile(x, (2, 1, 1, 3)),
    "split": lambda x: lax.split(x, (1, 1, 2), 2),
    "split to one": lambda x: lax.split(x, (4,), 2),
    "stack": lambda x: jnp.stack([x, x], 1),
    "unstack": lambda x: jnp.unstack(x, axis=1),
    "roll": lambda x: jnp.roll(x, (1, -1), axis=(2, 0)),
    "repeat": lambda x: jnp.repeat(x, 2, axis=1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "expand": lambda x: jnp.expand_dims(x, (0, 2)),
    "tril": lambda x: jnp.tril(x, 1),
}
TYPES = (*FLOATS, *INTEGERS, "bool", "int4", "float8_e4m3fn")


@pytest.mark.parametrize("dtype", sample(TYPES, "bfloat16"))
def test_moves(dtype):
    x = numbers("int8", 2, 3, 4) % 7 if dtype == "int4" else numbers(dtype, 2, 3, 4)
    assert_exported(in_type(dtype)(lambda x: {name: move(x) for name, move in MOVES.items()}), x)


def test_moves_in_the_reference_evaluator():
    """It does not take off elements with Pad."""
    moves = {name: move for name, move in MOVES.items() if name not in ("take off", "pad between")}
    assert_exported(lambda x: {name: move(x) for name, move in moves.items()}, numbers("float32", 2, 3, 4), reference=True)


@pytest.mark.parametrize(
    ("function", "nodes"),
    [
        (lambda x: x.reshape(4, 6).reshape(2, 12), ["Reshape"]),
        (lambda x: x[:, 1:], ["Slice"]),
        (lambda x: x[::-1], ["Slice"]),
        (lambda x: jnp.pad(x, 1), ["Pad"]),
        (lambda x: x + jnp.broadcast_to(jnp.arange(4.0), x.shape), ["Add"]),
        (lambda x: x * jnp.arange(4.0)[None, None], ["Mul"]),
        (lambda x: jnp.split(x, 2, axis=2), ["Split"]),
        (lambda x: jnp.where(jnp.tril(jnp.ones((3, 4), bool)), x, -1e9), ["Where"]),
        (lambda x: lax.stop_gradient(x + 0) + 1, ["Add", "Add"]),
    ],
)
def test_nodes(function, nodes):
    assert assert_exported(function, numbers("float32", 2, 3, 4)) == nodes


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.concatenate([x, jnp.ones((2, 3))]),
        lambda x: jnp.pad(x, 1),
        lambda x: jnp.ones((2, 3))[:, :0] + x.sum(),
        lambda x: jnp.broadcast_to(x[:, None], (0, 2, 3)),
        lambda x: x.T @ x,
        lambda x: [jnp.sort(x), jnp.cumsum(x, 0), x.reshape(3, 0)],
    ],
)
def test_empty_arrays(function):
    assert_exported(function, numbers("float32", 0, 3))


def test_large_counts_need_no_memory():
    """What is counted along one dimension is written without the others."""
    model = export(lambda x: x + lax.broadcasted_iota(jnp.float32, (512, 512), 1), numbers("float32", 512, 1))
    assert sum(len(tensor.raw_data) for tensor in model.graph.initializer) <= 4 * 512


OPEN = {
    "count": lambda x: x * jnp.arange(x.shape[0], dtype=jnp.float32)[:, None],
    "broadcast": lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], 4, 6)),
    "reshape": lambda x: x.reshape(-1, 2, 3),
    "flat": lambda x: x.reshape(-1),
    "tile": lambda x: jnp.tile(x, (2, 1)),
    "pad": lambda x: jnp.pad(x, 1),
    "concatenate": lambda x: jnp.concatenate([x, x]),
    "mean": lambda x: jnp.mean(x, 0),
    "sum": lambda x: jnp.cumsum(x, 0),
    "sort": lambda x: jnp.argsort(x, 0),
    "product": lambda x: x @ x.T,
    "outer products": lambda x: jnp.einsum("bi,bj->bij", x, x),
    "softmax": jax.nn.softmax,
    "pool": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"),
}


def test_open_sizes():
    (size,) = jax.export.symbolic_shape("size")
    x = numbers("float32", 5, 6)
    model = export(lambda x: {name: f(x) for name, f in OPEN.items()}, jax.ShapeDtypeStruct((size, 6), jnp.float32))
    for optimized in (False, True):
        outputs = run(model, [x], optimized=optimized)
        for (name, wanted), found in zip(
            sorted({name: f(jnp.asarray(x)) for name, f in OPEN.items()}.items()), outputs, strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=name)
