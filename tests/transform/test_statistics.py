"""What calibration observes of the inputs of sites for GPTQ and smoothing: X^T X, max|x| and mean|x| are NumPy's.

Inputs are small integers, so that all sums are exact in float32, in any order, and equal NumPy's. Means are rounded.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.comparison import assert_declined
from support.draw import Draw
from support.networks import recipe
from support.sampling import one_in

from jquant import transform
from jquant.calibration import Range
from jquant.transform import TransformTypeError
from jquant.transform.observations import statistics

GPTQ = transform.Scheme(activations="FLOAT", weight_rounding="GPTQ")
SMOOTH_QUANT = transform.Scheme(activations="DYNAMIC_ROW", smoothing="SMOOTHQUANT")
K = 16
DRAW = Draw(0, exact=True)
W = {name: DRAW.weights(K, K) for name in ("q", "k", "v", "out")}
STACKED = DRAW.weights(3, K, K, layers=1)
NESTED = DRAW.weights(2, 3, K, K, layers=2)


def shrunk(x):
    """Small integers again, in JAX or NumPy."""
    array = jnp if isinstance(x, jax.Array) else np
    return array.clip(array.round(x * np.float32(2**-8)), -7, 7)


class Case(NamedTuple):
    """A function, its parameters and batches, and the rows of each observed input in NumPy.

    `rows` maps the parameters and a batch to matrices (rows, K) by the name of the site, with layers before them; for a
    batch of products, to matrices (batch, rows, K).
    """

    apply: Callable
    params: Any
    batches: list
    rows: Callable
    is_batch: bool = False


def inputs(*sizes, dtype=np.float32):
    """Three batches, of different sizes along the first dimension, which is that of rows."""
    return [DRAW.input(count, *sizes, dtype=dtype) for count in (5, 1, 5)]


def after_layers(x, layers):
    """The inputs of layers, and the output."""
    before = []
    for w in layers:
        before.append(x)
        x = shrunk(x @ w)
    return np.stack(before), x


def scanned(params, x):
    return lax.scan(lambda x, w: (shrunk(x @ w), None), x, params)[0]


def twice_scanned(params, x):
    return lax.scan(lambda x, layers: (scanned(layers, x), None), x, params)[0]


def rows_of_nested(params, x):
    observed = []
    for layers in params:
        before, x = after_layers(x, layers)
        observed.append(before)
    return {"matmul": np.stack(observed)}


def attention(p, x):
    return (shrunk(x @ p["q"]) + shrunk(x @ p["k"]) + shrunk(x @ p["v"])) @ p["out"]


def repeated(p, x):
    return lax.fori_loop(0, 3, lambda _, x: shrunk(x @ p["q"]), x) @ p["out"]


def while_repeated(p, x):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, shrunk(c[1] @ p["q"])), (0, x))[1] @ p["out"]


def rows_of_repeated(p, x):
    before, x = after_layers(x, [p["q"]] * 3)
    return {"q": before.reshape(-1, K), "out": x}


def branching(p, x):
    return lax.cond(x.sum() > 0, lambda: (x + 1) @ p["q"], lambda: (x - 1) @ p["k"])


def mixed(p, x):
    """A scan with its own matrices and one that all passes read."""
    return lax.scan(lambda x, w: (shrunk(shrunk(x @ w) @ p["q"]), None), x, p["layers"])[0]


def rows_of_mixed(p, x):
    own, common = [], []
    for w in p["layers"]:
        own.append(x)
        common.append(shrunk(x @ w))
        x = shrunk(common[-1] @ p["q"])
    return {"layers": np.stack(own), "q": np.concatenate(common)}


def positive_and_negative():
    x = [abs(batch) + 1 for batch in inputs(K)]
    return [x[0], -x[1], x[2]]


INDICES = [np.array([2, 0, 0, 1, 2], np.int32), np.array([1], np.int32), np.array([0, 0, 0, 0, 0], np.int32)]
SIZES = [np.array([2, 0, 2], np.int32), np.array([0, 1, 0], np.int32), np.array([1, 1, 3], np.int32)]
CASES = {
    "product": Case(lambda w, x: x @ w, W["q"], inputs(K), lambda w, x: {"matmul": x}),
    "bfloat16": Case(
        lambda w, x: x @ w.astype(jnp.bfloat16), W["q"], inputs(K, dtype=jnp.bfloat16), lambda w, x: {"matmul": x}
    ),
    "weights first": Case(lambda w, x: jnp.einsum("kn,bk->nb", w, x), W["q"], inputs(K), lambda w, x: {"matmul": x}),
    "heads": Case(
        lambda w, x: jnp.einsum("bshd,hdn->bsn", x, w),
        DRAW.weights(2, 8, K),
        inputs(3, 2, 8),
        lambda w, x: {"matmul": x.reshape(-1, 16)},
    ),
    "heads, transposed": Case(
        lambda w, x: jnp.einsum("dsbh,hdn->bsn", x, w),
        DRAW.weights(2, 8, K),
        [x.transpose(2, 1, 0, 3) for x in inputs(3, 8, 2)],
        lambda w, x: {"matmul": x.transpose(2, 1, 0, 3).reshape(-1, 16)},
    ),
    "batch": Case(
        lambda w, x: jnp.einsum("mbk,bkn->mbn", x, w),
        DRAW.weights(3, K, K),
        inputs(3, K),
        lambda w, x: {"matmul": x.transpose(1, 0, 2)},
        is_batch=True,
    ),
    "shared input": Case(
        attention, W, inputs(K), lambda p, x: {"q": x, "out": sum(shrunk(x @ p[name]) for name in ("q", "k", "v"))}
    ),
    "scan": Case(scanned, STACKED, inputs(K), lambda p, x: {"matmul": after_layers(x, p)[0]}),
    "nested scans": Case(twice_scanned, NESTED, inputs(K), rows_of_nested),
    "a matrix in all passes": Case(repeated, W, inputs(K), rows_of_repeated),
    "while": Case(while_repeated, W, inputs(K), rows_of_repeated),
    "both kinds in a scan": Case(mixed, {"q": W["q"], "layers": STACKED}, inputs(K), rows_of_mixed),
    "cond": Case(branching, W, positive_and_negative(), lambda p, x: {"q": x + 1} if x.sum() > 0 else {"k": x - 1}),
    "vmap": Case(jax.vmap(lambda w, x: x @ w, (None, 0)), W["q"], inputs(4, K), lambda w, x: {"matmul": x.reshape(-1, K)}),
    "jit and checkpoint": Case(
        jax.jit(lambda w, x: jax.checkpoint(scanned)(w, x)),
        STACKED,
        inputs(K),
        lambda p, x: {"matmul": after_layers(x, p)[0]},
    ),
    "selected experts": Case(
        lambda w, x, i: jnp.einsum("bk,bkn->bn", x, w[i]),
        STACKED,
        list(zip(inputs(K), INDICES, strict=True)),
        lambda w, x, i: {"matmul": x},
    ),
    "groups of rows": Case(
        lambda w, x, sizes: lax.ragged_dot(x, w, sizes),
        STACKED,
        list(zip(inputs(K), SIZES, strict=True)),
        lambda w, x, sizes: {"matmul": x},
    ),
}


def expected_statistics(case):
    """By name, in NumPy's float64, then rounded to float32."""
    rows: dict = {}
    for batch in case.batches:
        batch = batch if isinstance(batch, tuple) else (batch,)
        for name, matrix in case.rows(case.params, *batch).items():
            rows.setdefault(name, []).append(np.asarray(matrix, np.float64))
    result = {}
    for name, matrices in rows.items():
        x = np.concatenate(matrices, axis=-2)
        over = (-3, -2) if case.is_batch else (-2,)
        count = np.prod([x.shape[axis] for axis in over])
        result[name] = transform.InputStatistics(
            products=np.swapaxes(x, -1, -2) @ x,
            largest=np.abs(x).max(over),
            mean=np.float32(np.abs(x).sum(over)) / np.float32(count),
        )
    return result


def assert_same(actual, expected):
    assert set(actual) == set(expected)
    for name, each in expected.items():
        for field in ("products", "largest", "mean"):
            wanted = getattr(each, field)
            observed = getattr(actual[name], field)
            if wanted is None:
                assert observed is None
                continue
            assert observed.dtype == np.float32
            if field == "mean":  # XLA may multiply by a reciprocal
                np.testing.assert_allclose(observed, wanted, 2.0**-22, 0, err_msg=name)
            else:
                np.testing.assert_array_equal(observed, wanted, f"{name}: {field}")


@one_in(4, "name", CASES, first=2)
def test_statistics(name, count):
    """Those of all rows of all batches, which have different shapes."""
    case = CASES[name]
    actual, expected = transform.calibrate(case.apply, case.params, case.batches, recipe(GPTQ)), expected_statistics(case)
    assert_same(actual, expected)
    count("statistics of inputs compared with NumPy", sum(map(np.size, jax.tree.leaves(expected))))
    first = case.batches[0] if isinstance(case.batches[0], tuple) else (case.batches[0],)
    transform.quantize(case.apply, case.params, recipe(GPTQ), *first, calibration=actual)


def test_only_what_a_scheme_needs():
    """SmoothQuant does not need X^T X. A static input has its range as well."""
    case = CASES["product"]
    expected = {name: each._replace(products=None) for name, each in expected_statistics(case).items()}
    assert_same(transform.calibrate(case.apply, case.params, case.batches, recipe(SMOOTH_QUANT)), expected)
    static = transform.Scheme(activations="STATIC", weight_rounding="GPTQ")
    actual = transform.calibrate(case.apply, case.params, case.batches, recipe(static))
    assert_same(actual, expected_statistics(case))
    bounds = (min(map(np.min, case.batches)), max(map(np.max, case.batches)))
    np.testing.assert_array_equal(actual["matmul"].range, bounds)


def test_float_sums(count):
    """Of other numbers, within the bound of float32 sums of so many terms in any order."""
    rng = np.random.default_rng(1)
    batches = [rng.normal(size=(200, 24)).astype(np.float32) for _ in range(3)]
    w = rng.normal(size=(24, 8)).astype(np.float32)
    observed = transform.calibrate(lambda w, x: x @ w, w, batches, recipe(GPTQ))["matmul"]
    x = np.concatenate(batches).astype(np.float64)
    tolerance = len(x) * 2.0**-24
    assert (np.abs(observed.products - x.T @ x) <= tolerance * np.abs(x).T @ np.abs(x)).all()
    assert (np.abs(observed.mean - np.abs(x).mean(0)) <= tolerance * np.abs(x).mean(0)).all()
    np.testing.assert_array_equal(observed.largest, np.abs(x).max(0))
    assert not np.array_equal(observed.products, x.T @ x)


def test_a_branch_that_is_never_taken():
    batches = [abs(batch) + 1 for batch in inputs(K)]
    message = "no batch reached k: is it in a branch that was never taken?"
    assert_declined(lambda: transform.calibrate(branching, W, batches, recipe(GPTQ)), message)


MESHES = {"automatic": AxisType.Auto, "explicit": AxisType.Explicit}


@pytest.mark.gate
@one_in(3, ("kind", "name"), [(kind, name) for name in ("shared input", "scan", "batch") for kind in MESHES], others="full")
def test_batches_over_a_mesh(kind, name):
    """The statistics of 8 devices, each with a part of the rows, are those of one, and so are the stored weights."""
    case, scheme = CASES[name], recipe(transform.Scheme(activations="FLOAT", weight_rounding="GPTQ", smoothing="AWQ"))
    batches = [np.resize(batch, (16, *batch.shape[1:])) for batch in case.batches]
    case = case._replace(batches=batches)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(MESHES[kind],))
    split = [jax.device_put(batch, NamedSharding(mesh, P("d"))) for batch in batches]
    params = jax.device_put(case.params, NamedSharding(mesh, P()))
    observed = transform.calibrate(case.apply, params, split, scheme)
    assert_same(observed, expected_statistics(case))
    _, expected = transform.quantize(
        case.apply,
        case.params,
        scheme,
        batches[0],
        calibration=transform.calibrate(case.apply, case.params, batches, scheme),
    )
    _, actual = transform.quantize(case.apply, params, scheme, split[0], calibration=observed)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.gate
def test_float_sums_over_a_mesh():
    """They differ by the order of the sums, and the rounded weights do not."""
    rng = np.random.default_rng(2)
    x, w = rng.normal(size=(512, 48)).astype(np.float32), rng.normal(size=(48, 24)).astype(np.float32)
    apply, scheme = (
        lambda w, x: x @ w,
        recipe(transform.Scheme(weight_type="INT4", activations="FLOAT", weight_rounding="GPTQ")),
    )
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    split, replicated = (jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in ((x, P("d")), (w, P())))
    observed = transform.calibrate(apply, replicated, [split], scheme)
    expected = transform.calibrate(apply, w, [x], scheme)
    limit = 2 * len(x) * 2.0**-24 * np.abs(x).T @ np.abs(x)
    assert (np.abs(np.asarray(observed["matmul"].products) - np.asarray(expected["matmul"].products)) <= limit).all()
    stored = [
        transform.quantize(apply, w, scheme, x, calibration=jax.device_get(each))[1]["sites"]
        for each in (observed, expected)
    ]
    jax.tree.map(np.testing.assert_array_equal, *stored)


def test_memory(monkeypatch):
    """What would not fit is refused before anything is allocated."""
    case = CASES["nested scans"]
    needed = 6 * (K * K + 2 * K + 1) * 4  # of each layer: X^T X, two vectors and the number of rows
    monkeypatch.setattr(statistics, "_memory", lambda: needed - 1)
    call = lambda: transform.calibrate(case.apply, case.params, case.batches, recipe(GPTQ))  # noqa: E731
    assert_declined(call, "X^T X of the inputs of 1 sites takes 0.0 GB, and there are 0.0 GB; matmul alone takes 0.0 GB")
    monkeypatch.setattr(statistics, "_memory", lambda: needed)
    call()


class TestWrongStatistics:
    W, X = W["q"], inputs(K)[0]

    @classmethod
    def quantize(cls, calibration, scheme=GPTQ):
        return transform.quantize(lambda w, x: x @ w, cls.W, recipe(scheme), cls.X, calibration=calibration)

    @classmethod
    def observed(cls, **changed):
        right = transform.InputStatistics(
            products=np.eye(K, dtype=np.float32), largest=np.ones(K, np.float32), mean=np.ones(K, np.float32)
        )
        return {"matmul": right._replace(**changed)}

    def test_none(self):
        assert_declined(lambda: self.quantize(None), "such as matmul, are rounded by GPTQ, which needs calibration=")

    def test_missing(self):
        missing = {"another": self.observed()["matmul"]}
        assert_declined(
            lambda: self.quantize(missing),
            "calibration['matmul'], of the input of matmul, is missing; calibration has: another",
        )

    @pytest.mark.parametrize("wrong", [Range(np.float32(-1), np.float32(1)), None, 3, "a string", np.eye(K), (1, 2, 3, 4)])
    def test_no_statistics(self, wrong):
        assert_declined(
            lambda: self.quantize({"matmul": wrong}), "it must be a transform.InputStatistics", TransformTypeError
        )

    @pytest.mark.parametrize(("scheme", "field"), [(GPTQ, "products"), (SMOOTH_QUANT, "largest")])
    def test_fields(self, scheme, field):
        right = self.observed()["matmul"]
        shape = getattr(right, field).shape

        def of(value):
            return lambda: self.quantize(self.observed(**{field: value}), scheme)

        assert_declined(of(None), f"has no {field}. Calibrate with the same recipe")
        assert_declined(of(np.ones((2, *shape), np.float32)), f"has {field} of shape {(2, *shape)}; it must be {shape}")
        assert_declined(of(np.float32(1)), f"has {field} of shape (); it must be {shape}")
        for bad in (np.nan, np.inf):
            assert_declined(of(np.full(shape, bad, np.float32)), f"has {field} that are not all finite")
        for bad in ("a string", object(), {1}, [[1], [2, 3]]):
            assert_declined(of(bad), f"has {field}=", TransformTypeError)

    def test_not_positive_definite(self):
        """Without damping, X^T X of a single row has no inverse; with damping, it has."""
        ones = np.ones((K, K), np.float32)
        undamped = transform.Scheme(activations="FLOAT", weight_rounding=("GPTQ", 0))
        for matrix in (ones, -np.eye(K, dtype=np.float32)):
            message = "X^T X of the inputs of matmul, with damping 0.0, is not positive definite in float32"
            assert_declined(lambda matrix=matrix: self.quantize(self.observed(products=matrix), undamped), message)
        self.quantize(self.observed(products=ones))

    def test_infinite_batches(self):
        """Observed, but refused when weights are prepared with them."""
        for bad in (np.inf, np.nan):
            x = self.X.copy()
            x[0, 0] = bad
            observed = transform.calibrate(lambda w, x: x @ w, self.W, [x], recipe(GPTQ))
            assert_declined(lambda observed=observed: self.quantize(observed), "are there infinities or NaN in the batches?")
