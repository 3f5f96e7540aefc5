"""Parts of arrays at computed indices: gather, scatter and dynamic slices, in bounds and out of them."""

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from support.sampling import one_in

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")


from jquant.onnx import ModelError, export

from .running import run
from .same_results import assert_same, nodes

RNG = np.random.default_rng(5)
X = RNG.normal(size=(4, 6, 8)).astype(np.float32)
TABLE = RNG.integers(-128, 128, (10, 3), np.int8)
NEAR = np.array([0, 3, -1, 2, 1], np.int32)
FAR = np.array([0, 7, -9, 2, 1], np.int32)


def number(value: int) -> np.ndarray:
    return np.array(value, np.int32)


def along(axis: int, *shape: int) -> np.ndarray:
    return RNG.integers(-X.shape[axis] - 2, X.shape[axis] + 2, shape, np.int32)


READ = {
    "rows": (lambda x, i: x[i], TABLE, NEAR),
    "rows of a matrix of tokens": (lambda x, i: x[i], TABLE, NEAR.reshape(1, 5)),
    "columns": (lambda x, i: x[:, :, i], X, NEAR),
    "both sides": (lambda x, i: x[i, i], X, NEAR),
    "inner dimensions": (lambda x, i: x[:, i, i], X, NEAR),
    "apart": (lambda x, i: x[i, :, i], X, NEAR),
    "with a slice": (lambda x, i: x.at[i, 1:3].get(mode="fill", fill_value=7.0), X, FAR),
    "grid": (lambda x, i: x.at[i[:, None], i[None]].get(mode="clip"), X, FAR),
    "one element": (lambda x, i: x[i, 2, i], X, number(3)),
    "along, whole": (lambda x, i: jnp.take_along_axis(x, i, 2), X, along(2, 4, 6, 2)),
    "along, broadcast": (lambda x, i: jnp.take_along_axis(x, i, 1), X, along(1, 4, 2, 1)),
    "along the first": (lambda x, i: jnp.take_along_axis(x, i, 0), X, along(0, 3, 6, 8)),
    "each row its own": (jax.vmap(lambda x, i: x[i]), X, NEAR[:4, None] % 6),
    "each row its own column": (jax.vmap(lambda x, i: x[:, i]), X, NEAR[:4]),
    "mapped twice": (jax.vmap(jax.vmap(lambda x, i: x[i])), X, along(2, 4, 6, 3) % 8),
    "windows": (jax.vmap(lambda x, i: lax.dynamic_slice(x, (i, 1), (3, 5))), X, FAR[:4]),
    "windows of one": (lambda x, i: jax.vmap(lambda i: lax.dynamic_slice(x, (i, 1, 0), (2, 5, 8)))(i), X, FAR),
    "slice": (lambda x, i: lax.dynamic_slice(x, (i, 1, i), (2, 5, 8)), X, number(2)),
    "slice before the start": (lambda x, i: lax.dynamic_slice(x, (0, i, i), (4, 5, 3)), X, number(-20)),
    "slice past the end": (lambda x, i: lax.dynamic_index_in_dim(x, i, 1), X, number(77)),
    "whole slice": (lambda x, i: lax.dynamic_slice(x, (i, 0, 0), (4, 6, 8)), X, number(3)),
    "small indices": (lambda x, i: jnp.take(x, i, axis=0, mode="clip"), X, np.array([0, 3, 200], np.uint8)),
    "known indices": (lambda x: x[np.array([1, 1, 3])], X),
    "backward": (lambda x: x[::-1, 1, ::2], X),
    "truth values": (lambda x, i: x[i], X > 0, NEAR),
    "half": (lambda x, i: jnp.take(x, i, axis=0), X.astype(np.float16), FAR),
}


@one_in(3, "case", READ)
def test_parts(case):
    function, *arguments = READ[case]
    assert_same(function, arguments)


@one_in(5, ("mode", "axis"), itertools.product(["clip", "fill", "wrap"], [0, 1, 2, None]))
def test_take(mode, axis):
    assert_same(lambda x, i: jnp.take(x, i, axis=axis, mode=mode), [X, FAR])


def test_nodes():
    """The usual forms are one node, and steps of integers on the places."""
    whole = {"mode": "promise_in_bounds"}
    i, pairs = np.zeros(3, np.uint32), np.zeros((4, 2, 1), np.int32)
    numbers = lax.GatherDimensionNumbers((), (1,), (1,), (0, 2), (0, 2))
    assert nodes(export(lambda x, i: x.at[i].get(**whole), TABLE, i))[-1] == "Gather"
    assert nodes(export(lambda x, i: x.at[:, i].get(**whole), X, i))[-1] == "Gather"
    assert nodes(export(lambda x, i: x.at[i, i].get(**whole), X, i))[-1] == "GatherND"
    at = np.zeros((4, 2, 8, 1), np.int32)
    assert (
        nodes(export(lambda x, i: lax.gather(x, i, numbers, (1, 1, 1), mode=whole["mode"]), X, at))[-1] == "GatherElements"
    )
    assert nodes(export(jax.vmap(lambda x, i: x.at[i[:, 0]].get(**whole)), X, pairs))[-1] == "GatherND"
    cache = nodes(export(lambda x, y, i: lax.dynamic_update_slice(x, y, (0, i, 0)), X, X[:, :1], number(0)))
    assert cache[-1] == "ScatterND"
    assert "Transpose" not in cache
    assert "Expand" not in cache


WRITE = {
    "rows": (lambda x, i: x.at[i].set(x[:3]), X, np.array([3, 1, 9], np.int32)),
    "columns": (lambda x, i: x.at[:, :, i].set(7.0), X, np.array([3, 1, 9], np.int32)),
    "apart": (lambda x, i: x.at[i, 1:3, i].set(7.0), X, np.array([3, 1, 9], np.int32)),
    "one": (lambda x, i: x.at[:, i].set(x[:, 0]), X, number(2)),
    "one out of bounds": (lambda x, i: x.at[:, i].set(x[:, 0]), X, number(99)),
    "in bounds": (lambda x, i: x.at[i].set(x[:3], mode="promise_in_bounds"), X, np.array([3, 1, 2], np.int32)),
    "clipped": (lambda x, i: x.at[i].set(x[:3], mode="clip"), X, np.array([1, -9, 2], np.int32)),
    "all": (lambda x: x.at[...].set(-x), X),
    "known": (lambda x: x.at[1, 2].set(x[0, 0]), X),
    "known slices": (lambda x: x.at[:, 2:4, ::3].set(1.0), X),
    "truth values": (lambda x, i: x.at[i].set(True), X > 0, NEAR[:3]),
    "one-hot": (lambda x, i: jnp.zeros((4, 9), np.int8).at[jnp.arange(4), i].set(x), np.int8([1, 2, 3, 4]), FAR[:4]),
    "cache": (lambda x, y, i: lax.dynamic_update_slice(x, y, (0, i, 0)), X, -X[:, :2], number(3)),
    "cache past the end": (lambda x, y, i: lax.dynamic_update_slice(x, y, (0, i, 0)), X, -X[:, :2], number(99)),
    "corner": (lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i, i)), X, -X[:1, :2, :3], number(2)),
    "first dimension": (lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i, i)), X, -X[:2], number(1)),
    "each its own": (jax.vmap(lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 0))), X, -X[:, :2], FAR[:4]),
    "half": (
        lambda x, y, i: lax.dynamic_update_slice(x, y, (0, i, 0)),
        X.astype(np.float16),
        np.float16(-X[:, :1]),
        number(1),
    ),
}


@one_in(3, "case", WRITE)
def test_updates(case):
    function, *arguments = WRITE[case]
    assert_same(function, arguments)


REPEATED = np.array([3, 1, 9, 3, -1], np.int32)
DTYPES = [np.float32, np.int8, np.uint8, np.int32]


@one_in(3, ("name", "dtype"), itertools.product(["add", "subtract", "multiply", "min", "max"], DTYPES))
def test_reductions(name, dtype):
    """Several updates of one element, some of them out of bounds; integers wrap."""
    x = (X * 40).astype(dtype)
    assert_same(lambda x, i: getattr(x.at[:, i], name)(dtype(3)), [x, REPEATED])
    assert_same(lambda x, i: getattr(x.at[i, i], name)(x[:5, 0]), [np.concatenate([x, x]), REPEATED])


def test_reduction_of_truth_values():
    assert_same(lambda x, i: x.at[i].max(True), [X > 0, REPEATED])


def test_zeros_keep_their_signs():
    """An update that is left out changes nothing."""
    x = np.full((4,), -0.0, np.float32)
    model = export(lambda x, i: x.at[i].add(1.0), x, np.array([9], np.int32))

    (result,) = run(model, [x, np.array([9], np.int32)], optimized=True)
    assert np.signbit(result).all()


@one_in(
    3,
    "dtype",
    [ml_dtypes.int4, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.uint4, ml_dtypes.float8_e5m2],
    others="full",
)
def test_narrow_types(dtype):
    """Those for which the nodes have no kernel move in wider ones."""

    def function(x: jax.Array, i: jax.Array) -> list:
        narrow = x.astype(dtype)
        parts = [
            narrow[i],
            narrow[0, i],
            lax.dynamic_slice(narrow, (i[0], 0, 0), (2, 6, 3)),
            narrow.at[i].set(narrow[:5] * 2),
        ]
        parts += [jnp.take_along_axis(narrow, i[None, :, None], 1), *lax.scan(lambda c, x: (x, c), narrow[0], narrow)]
        return [part.astype(jnp.float32) for part in parts]

    x = np.tile(np.round(np.abs(X)), (2, 1, 1))
    assert_same(function, [x, np.array([4, 0, 1, 3, 2], np.int32)])


def test_function_of_updates():
    def twice(x: jax.Array, i: jax.Array) -> jax.Array:
        return x.at[i].apply(lambda x: x * x)

    with pytest.raises(ModelError, match=r"scatter \(.*\): updates by a function of one's own"):
        export(twice, X, NEAR)


def any_gather(rng: np.random.Generator) -> tuple:
    """A random gather: its array, its indices and its parameters."""
    rank = int(rng.integers(1, 5))
    shape = tuple(map(int, rng.integers(1, 5, rank)))
    order = list(map(int, rng.permutation(rank)))
    joined = tuple(sorted(order[: int(rng.integers(0, rank))])) if rng.random() < 0.4 else ()
    free = [d for d in order if d not in joined]
    starts = tuple(free[: int(rng.integers(1, len(free) + 1))])
    batch_rank = int(rng.integers(len(joined), len(joined) + 3))
    batch = list(map(int, rng.integers(1, 4, batch_rank)))
    with_indices = tuple(map(int, rng.permutation(batch_rank)[: len(joined)]))
    for d, k in zip(joined, with_indices, strict=True):
        batch[k] = shape[d]
    sizes = [1 if d in joined else int(rng.integers(1, shape[d] + 1)) for d in range(rank)]
    left_out = tuple(d for d in range(rank) if d not in joined and sizes[d] == 1 and rng.random() < 0.6)
    kept = rank - len(left_out) - len(joined)
    offsets = tuple(sorted(map(int, rng.permutation(kept + batch_rank)[:kept])))
    indices = rng.integers(-2, 6, (*batch, len(starts)), np.int32)
    x = rng.integers(-100, 100, shape, np.int32)
    return x, indices, (offsets, left_out, starts, joined, with_indices), tuple(sizes)


def check_gathers(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        x, indices, numbers, sizes = any_gather(rng)
        mode = str(rng.choice(["clip", "fill"]))
        dimensions = lax.GatherDimensionNumbers(*numbers)
        assert_same(lambda x, i, n=dimensions, s=sizes, m=mode: lax.gather(x, i, n, s, mode=m), [x, indices])


def check_scatters(count: int, seed: int) -> None:
    """The parameters of a gather, with updates in place of its result. Sums do not depend on the order."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        x, indices, numbers, sizes = any_gather(rng)
        mode = str(rng.choice(["clip", "fill"]))
        gathered = jax.eval_shape(
            lambda x, i, n=numbers, s=sizes: lax.gather(x, i, lax.GatherDimensionNumbers(*n), s), x, indices
        )
        updates = rng.integers(-100, 100, gathered.shape, np.int32)
        dimensions = lax.ScatterDimensionNumbers(*numbers)
        name = str(rng.choice(["scatter_add", "scatter_mul", "scatter_min", "scatter_max"]))
        function = getattr(lax, name)
        assert_same(lambda x, i, u, f=function, n=dimensions, m=mode: f(x, i, u, n, mode=m), [x, indices, updates])
        constant = np.full_like(updates, 77)  # whatever is set last
        assert_same(lambda x, i, u, n=dimensions, m=mode: lax.scatter(x, i, u, n, mode=m), [x, indices, constant])


@pytest.mark.gate
def test_any_gather():
    check_gathers(12, 1)


@pytest.mark.gate
def test_any_scatter():
    check_scatters(6, 2)


@pytest.mark.full
def test_any_gather_and_scatter():
    check_gathers(250, 3)
    check_scatters(250, 4)
