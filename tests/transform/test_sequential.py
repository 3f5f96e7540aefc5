"""``calibrate(sequential=True)`` equals quantizing one layer after the other by hand, with the outputs of those before.

Between layers, activations are rounded to small integers, so that X^T X is exact, however a program adds it up.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.comparison import assert_declined
from support.draw import Draw
from support.networks import recipe
from support.sampling import one_in

from jquant import transform
from jquant.transform import TransformTypeError

K = 32
DRAW = Draw(0)
LAYERS = np.stack([DRAW.weights(K, K) for _ in range(3)])
PARAMS = dict(zip("abc", LAYERS, strict=True))
BATCHES = [Draw(seed, exact=True).input(12, K) for seed in (1, 2, 3)]
SCHEMES = {
    "gptq": {"weight_type": "INT4", "activations": "FLOAT", "weight_rounding": "GPTQ"},
    "gptq, dynamic": {"weight_type": "INT4", "weight_rounding": ("GPTQ", 0.05, False), "block_size": 16},
    "gptq, static": {"activations": "STATIC", "weight_rounding": "GPTQ", "weight_type": "UINT4"},
    "awq, rotated": {"activations": "DYNAMIC_ROW", "smoothing": "AWQ", "rotation": "HADAMARD", "weight_rounding": "GPTQ"},
    "smoothquant": {"activations": "DYNAMIC_ROW", "smoothing": "SMOOTHQUANT", "weight_type": "INT4"},
}


def shrunk(x):
    return jnp.clip(jnp.round(x / 4), -7, 7)


def layer(w, x):
    return shrunk(x @ w)


def apply(params, x):
    for name in "abc":
        x = layer(params[name], x)
    return x


def scanned(layers, x):
    return lax.scan(lambda x, w: (layer(w, x), None), x, layers)[0]


def by_hand(scheme, ranges):
    """The statistics and the stored arrays of each layer, and the last outputs: each layer is a function of its own."""
    results, batches = [], BATCHES
    for w, range in zip(LAYERS, ranges, strict=True):
        observed = transform.calibrate(layer, w, batches, recipe(scheme))["matmul"]._replace(range=range)
        calibration = {"matmul": observed}
        quantized_apply, quantized_params = transform.quantize(layer, w, recipe(scheme), batches[0], calibration=calibration)
        batches = [jax.jit(quantized_apply)(quantized_params, x) for x in batches]
        results.append((observed, quantized_params["sites"]["matmul"]))
    return results, batches


def assert_same(actual, expected):
    """All but the means are exact."""
    for field in ("range", "products", "largest"):
        jax.tree.map(np.testing.assert_array_equal, getattr(actual, field), getattr(expected, field))
    np.testing.assert_allclose(actual.mean, expected.mean, 2.0**-22)


@one_in(10, ("name", "is_scan"), [(name, is_scan) for is_scan in (False, True) for name in SCHEMES], first=6, gate=4)
def test_layer_by_layer(name, is_scan, count):
    """The same statistics, and the same integers and scales; without `sequential`, others."""
    scheme = transform.Scheme(**SCHEMES[name])
    function, params = (scanned, LAYERS) if is_scan else (apply, PARAMS)
    plain, observed = (
        transform.calibrate(function, params, BATCHES, recipe(scheme), sequential=sequential) for sequential in (False, True)
    )

    def of_layers(calibration):
        if is_scan:
            return [jax.tree.map(lambda array, number=number: array[number], calibration["matmul"]) for number in range(3)]
        assert list(calibration) == list("abc")
        return list(calibration.values())

    expected, _ = by_hand(scheme, [each.range for each in of_layers(plain)])
    for actual, (wanted, _) in zip(of_layers(observed), expected, strict=True):
        assert_same(actual, wanted)
    _, quantized_params = transform.quantize(function, params, recipe(scheme), BATCHES[0], calibration=observed)
    stored = [
        jax.tree.map(lambda array, number=number: array[number], quantized_params["sites"]["matmul"])
        if is_scan
        else quantized_params["sites"]["abc"[number]]
        for number in range(3)
    ]
    for actual, (_, wanted) in zip(stored, expected, strict=True):
        if "AWQ" not in str(scheme):  # whose factors depend on the means, which are rounded
            jax.tree.map(np.testing.assert_array_equal, actual, wanted)
        else:
            np.testing.assert_array_equal(actual["values"].unpack(), wanted["values"].unpack())
            np.testing.assert_allclose(actual["smoothing"], wanted["smoothing"], 1e-6)
        count("integers of sequential calibration compared with those by hand", K * K)
    for number, (each, sequential) in enumerate(zip(of_layers(plain), of_layers(observed), strict=True)):
        assert np.array_equal(each.mean, sequential.mean) == (number == 0)


@pytest.mark.gate
def test_products_of_activations():
    """They are quantized as well, where the recipe says so."""

    def scores(params, x):
        return shrunk(jnp.einsum("bk,ck->bc", x @ params["q"], x @ params["k"]) / 64)

    def attention(params, x):
        return scores(params, x) @ params["v"]

    gptq = transform.Scheme(activations="FLOAT", weight_rounding="GPTQ")
    rules = [("activation_matmul*", transform.Scheme(activations="DYNAMIC_ROW"))]
    rules += [("[qk]", transform.Scheme(activations="FLOAT")), ("*", gptq)]
    params = {**dict(zip("qk", LAYERS, strict=False)), "v": DRAW.weights(12, K)}
    observed = transform.calibrate(attention, params, BATCHES, transform.Recipe(rules, smallest=1), sequential=True)
    before = transform.Recipe(rules[:2], smallest=1)
    quantized_apply, quantized_params = transform.quantize(scores, params, before, BATCHES[0])
    rows = np.concatenate([jax.jit(quantized_apply)(quantized_params, x) for x in BATCHES])
    np.testing.assert_array_equal(observed["v"].products, rows.T @ rows)
    in_float = np.concatenate([scores(params, x) for x in BATCHES])
    assert not np.array_equal(rows, in_float)


def test_an_input_that_batches_have_in_common():
    """It counts once for each batch."""
    scheme = recipe(transform.Scheme(activations="FLOAT", weight_rounding="GPTQ"))

    def function(params, x):
        step = lambda i, x: x + jnp.full((2, K), i + 1).astype(jnp.float32) @ params["a"]  # noqa: E731
        return lax.fori_loop(0, 3, step, x)

    batches = [x[:2] for x in BATCHES]
    for sequential in (False, True):
        observed = transform.calibrate(function, PARAMS, batches, scheme, sequential=sequential)["a"]
        np.testing.assert_array_equal(observed.products, np.full((K, K), len(batches) * 2 * (1 + 4 + 9)))
        np.testing.assert_array_equal(observed.mean, np.full(K, 2))


@pytest.mark.gate
def test_a_shared_input_and_a_loop():
    """Sites of one input share its statistics; a matrix that a loop reads has those of all passes."""
    scheme = transform.Scheme(activations="FLOAT", weight_rounding="GPTQ")

    def function(params, x):
        x = shrunk(x @ params["a"] + x @ params["b"])
        return lax.fori_loop(0, 2, lambda _, x: layer(params["c"], x), x)

    observed = transform.calibrate(function, PARAMS, BATCHES, recipe(scheme), sequential=True)
    assert set(observed) == {"a", "c"}
    rows = np.concatenate(BATCHES)
    np.testing.assert_array_equal(observed["a"].products, rows.T @ rows)
    assert observed["c"].products.shape == (K, K)
    # The first pass is quantized with its own statistics, and the second one with those of both.
    pair = lambda params, x: shrunk(x @ params["a"] + x @ params["b"])  # noqa: E731
    quantized_apply, quantized_params = transform.quantize(
        pair, {name: PARAMS[name] for name in "ab"}, recipe(scheme), BATCHES[0], calibration={"a": observed["a"]}
    )
    first = [jax.jit(quantized_apply)(quantized_params, x) for x in BATCHES]
    own = transform.calibrate(layer, PARAMS["c"], first, recipe(scheme))
    quantized_apply, quantized_params = transform.quantize(layer, PARAMS["c"], recipe(scheme), first[0], calibration=own)
    second = [jax.jit(quantized_apply)(quantized_params, x) for x in first]
    rows = np.concatenate([*first, *second])
    np.testing.assert_array_equal(observed["c"].products, rows.T @ rows)


@pytest.mark.gate
def test_batches_over_a_mesh():
    """The statistics of 8 devices are those of one."""
    scheme = recipe(transform.Scheme(**SCHEMES["gptq"]))
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    batches = [np.resize(x, (16, K)) for x in BATCHES]
    split = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("d"))) for x in batches]
    params = jax.device_put(PARAMS, NamedSharding(mesh, PartitionSpec()))
    actual = transform.calibrate(apply, params, split, scheme, sequential=True)
    expected = transform.calibrate(apply, PARAMS, batches, scheme, sequential=True)
    for name in "abc":
        assert_same(actual[name], expected[name])


@pytest.mark.gate
def test_a_loop_with_a_counter():
    """A loop whose passes are counted is that of all batches."""
    scheme = recipe(transform.Scheme(activations="FLOAT", weight_rounding="GPTQ"))

    def counted(params, x):
        step = lambda carry: (carry[0] + 1, layer(params["a"], carry[1]))  # noqa: E731
        return lax.while_loop(lambda carry: carry[0] < 2, step, (0, x))[1] @ params["b"]

    def unrolled(params, x):
        return lax.fori_loop(0, 2, lambda _, x: layer(params["a"], x), x) @ params["b"]

    actual, expected = (
        transform.calibrate(function, PARAMS, BATCHES, scheme, sequential=True) for function in (counted, unrolled)
    )
    for name in "ab":
        assert_same(actual[name], expected[name])


def test_refused():
    scheme = recipe(transform.Scheme(activations="FLOAT", weight_rounding="GPTQ"))
    shapes = [BATCHES[0], BATCHES[1][:3]]
    call = lambda: transform.calibrate(apply, PARAMS, shapes, scheme, sequential=True)  # noqa: E731
    assert_declined(call, "sequential=True needs batches of one shape, which go through the function at once")
    for wrong in (1, "yes", None):
        assert_declined(
            lambda wrong=wrong: transform.calibrate(apply, PARAMS, BATCHES, scheme, sequential=wrong),
            "transform.calibrate: sequential is",
            TransformTypeError,
        )


BRANCHES = {
    "cond": lambda p, x: lax.cond(x[0, 0] > 0, lambda: layer(p["a"], x), lambda: layer(p["b"], x)),
    "while": lambda p, x: lax.while_loop(lambda x: x[0, 0] > 0, lambda x: layer(p["a"], x) - 3, x) @ p["b"],
}


@pytest.mark.parametrize("name", BRANCHES)
def test_conditions_that_differ_between_batches(name):
    scheme = recipe(transform.Scheme(activations="FLOAT", weight_rounding="GPTQ"))
    batches = [abs(BATCHES[0]) + 1, -abs(BATCHES[1]) - 1]
    assert_declined(
        lambda: transform.calibrate(BRANCHES[name], PARAMS, batches, scheme, sequential=True),
        "sequential=True is not for a branch or a loop with sites, whose condition differs between batches",
    )


def test_progress(capsys, monkeypatch):
    """A bar of the batches, each of which has been computed when it is counted; and one of the run of all of them."""
    pytest.importorskip("tqdm", reason="tqdm is not installed (extra: examples)")
    waited, wait = [], jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", lambda tree: waited.append(tree) or wait(tree))
    scheme = recipe(transform.Scheme(**SCHEMES["gptq, static"]))
    transform.calibrate(layer, LAYERS[0], BATCHES, scheme, progress=True, sequential=True)
    bars = capsys.readouterr().err
    assert "calibrating: 100%" in bars
    assert "quantizing site by site: 100%" in bars
    assert len(waited) == len(BATCHES) + 1
