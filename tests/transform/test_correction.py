"""GPTQ's correction for what earlier sites put into the inputs (QEP): its statistics and its weights, beside those by hand.

Between layers, activations are rounded to small integers, so that sums of their products are exact in any order.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.draw import Draw
from support.networks import recipe
from support.sampling import one_in

from jquant import transform
from jquant.transform import TransformError
from jquant.transform.recipes.preparation import Gptq
from jquant.transform.weights import gptq

K = 32
DRAW = Draw(0)
LAYERS = np.stack([DRAW.weights(K, K) for _ in range(3)])
BATCHES = [Draw(seed, exact=True).input(12, K) for seed in (1, 2, 3)]
SCHEMES = {
    "int4": {"weight_type": "INT4", "activations": "FLOAT", "weight_rounding": ("GPTQ", 0.01, True, 0.5)},
    "int2, searched": {
        **{"weight_type": "INT2", "activations": "FLOAT", "block_size": 16, "weight_range": "mean_squared_error"},
        "weight_rounding": ("GPTQ", 0.05, False, 1.0),
    },
    "dynamic": {"weight_type": "INT4", "weight_rounding": ("GPTQ", 0.01, True, 0.25)},
    "rotated": {
        **{"activations": "DYNAMIC_ROW", "rotation": "HADAMARD", "weight_type": "INT4"},
        "weight_rounding": ("GPTQ", 0.01, True, 0.5),
    },
}


def layer(w, x):
    return jnp.clip(jnp.round(x @ w / 4), -7, 7)


def apply(params, x):
    for name in sorted(params):
        x = layer(params[name], x)
    return x


def scanned(layers, x):
    return lax.scan(lambda x, w: (layer(w, x), None), x, layers)[0]


def by_hand(scheme):
    """The statistics and the stored arrays of each layer, each a function of its own; floats run beside them."""
    plain = dataclasses.replace(scheme, weight_rounding=tuple(scheme.weight_rounding)[:3])
    exact = batches = [jnp.asarray(x) for x in BATCHES]
    results = []
    for w in LAYERS:
        observed = transform.calibrate(layer, w, batches, recipe(plain))["matmul"]
        rows, errors = np.concatenate(batches), np.concatenate(exact) - np.concatenate(batches)
        observed = observed._replace(errors=rows.T @ errors)
        calibration = {"matmul": observed}
        function, params = transform.quantize(layer, w, recipe(scheme), batches[0], calibration=calibration)
        batches = [jax.jit(function)(params, x) for x in batches]
        exact = [layer(w, x) for x in exact]
        results.append((observed, params["sites"]["matmul"]))
    return results


@one_in(4, ("name", "is_scan"), [(name, is_scan) for is_scan in (False, True) for name in SCHEMES], first=1, gate=2)
def test_layer_by_layer(name, is_scan, count):
    """The same sums, and the same integers and scales, also in a loop over stacked layers."""
    scheme = transform.Scheme(**SCHEMES[name])
    function, params = (scanned, LAYERS) if is_scan else (apply, dict(zip("abc", LAYERS, strict=True)))
    observed = transform.calibrate(function, params, BATCHES, recipe(scheme), sequential=True)
    _, quantized = transform.quantize(function, params, recipe(scheme), BATCHES[0], calibration=observed)

    def of_layer(tree, number):
        return jax.tree.map(lambda array: array[number], tree["matmul"]) if is_scan else tree["abc"[number]]

    for number, (expected, stored) in enumerate(by_hand(scheme)):
        actual = of_layer(observed, number)
        for field in ("products", "errors", "largest"):
            np.testing.assert_array_equal(getattr(actual, field), getattr(expected, field), err_msg=field)
        assert np.any(actual.errors) == (number > 0)
        jax.tree.map(np.testing.assert_array_equal, of_layer(quantized["sites"], number), stored)
        count("sums of errors", K * K)


@pytest.mark.parametrize("seed", range(3))
def test_nearest_outputs(seed):
    """All of the correction, without damping: no matrix is nearer to the outputs of the float network."""
    rng = np.random.default_rng(seed)
    exact = rng.normal(size=(200, K))
    rows = exact + rng.normal(size=(200, K)) / 4
    w = rng.normal(size=(K, 8))
    nearest = np.linalg.lstsq(rows, exact @ w, rcond=None)[0]
    products, errors = (jnp.asarray(rows.T @ each, jnp.float32) for each in (rows, exact - rows))
    for share in (1.0, 0.5):
        corrected, succeeded = gptq.corrected(Gptq(0, True, share), jnp.asarray(w, jnp.float32), products, errors)
        assert succeeded
        np.testing.assert_allclose(corrected, w + share * (nearest - w), rtol=0, atol=1e-5)


def test_less_noise():
    """Few bits: the outputs of other inputs are nearer to those in float with the correction than without."""

    def network(params, x):
        for name in sorted(params):
            x = jax.nn.gelu(x @ params[name]) * 2
        return x

    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(K, K)) / 6
    params = {name: np.float32(rng.normal(size=(K, K)) / 6) for name in "abcd"}
    *batches, other = (np.float32(rng.normal(size=(128, K)) @ mixing) for _ in range(5))
    noise = []
    for correction in (0, 0.5):
        rounding = "GPTQ", 0.01, True, correction
        scheme = transform.Scheme(weight_type="INT2", block_size=16, activations="FLOAT", weight_rounding=rounding)
        observed = transform.calibrate(network, params, batches, recipe(scheme), sequential=True)
        function, quantized = transform.quantize(network, params, recipe(scheme), other, calibration=observed)
        noise.append(np.square(function(quantized, other) - network(params, other)).sum())
    assert noise[1] < 0.9 * noise[0]


def test_products_of_activations():
    """In the float network, they are products of floats."""

    def attention(params, x):
        scores = jnp.einsum("bk,ck->bc", x @ params["q"], x @ params["k"])
        return jnp.clip(jnp.round(scores / 64), -7, 7) @ params["v"]

    rules = [("activation_matmul*", transform.Scheme(activations="DYNAMIC_ROW"))]
    rules += [("[qk]", transform.Scheme(activations="FLOAT")), ("v", transform.Scheme(**SCHEMES["int4"]))]
    params = {**dict(zip("qk", LAYERS, strict=False)), "v": DRAW.weights(12, K)}

    def inputs_of_v(rules):
        scores = lambda params, x: attention({**params, "v": np.eye(12, dtype=np.float32)}, x)  # noqa: E731
        if not rules:
            return np.concatenate([scores(params, x) for x in BATCHES])
        function, quantized = transform.quantize(scores, params, transform.Recipe(rules, smallest=1), BATCHES[0])
        return np.concatenate([jax.jit(function)(quantized, x) for x in BATCHES])

    observed = transform.calibrate(attention, params, BATCHES, transform.Recipe(rules, smallest=1), sequential=True)
    exact, rows = inputs_of_v([]), inputs_of_v(rules[:2])
    np.testing.assert_array_equal(observed["v"].errors, rows.T @ (exact - rows))
    assert np.any(exact != rows)


def test_errors():
    scheme = recipe(transform.Scheme(**SCHEMES["int4"]))
    params = dict(zip("abc", LAYERS, strict=True))
    with pytest.raises(
        TransformError, match=r"^transform.calibrate: the weights of some sites, such as a, .* sequential=True$"
    ):
        transform.calibrate(apply, params, BATCHES, scheme)
    plain = recipe(transform.Scheme(**{**SCHEMES["int4"], "weight_rounding": "GPTQ"}))
    observed = transform.calibrate(apply, params, BATCHES, plain, sequential=True)
    with pytest.raises(
        TransformError, match=r"calibration\['a'\], of the input of a, has no errors. Calibrate with the same"
    ):
        transform.quantize(apply, params, scheme, BATCHES[0], calibration=observed)
    for correction in (-0.1, 1.5, np.nan):
        with pytest.raises(TransformError, match="the correction of weight_rounding"):
            transform.Scheme(weight_rounding=("GPTQ", 0.01, True, correction))
    assert transform.Recipe.from_json(scheme.to_json()) == scheme
