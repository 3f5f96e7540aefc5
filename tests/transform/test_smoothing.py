"""SmoothQuant and AWQ: the stored factors are those of the papers' formulas in NumPy's float64."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from support import formats, optimal_brain
from support.networks import recipe
from support.sampling import one_in

from jquant import transform

ROWS, COLUMNS, COUNT = 72, 20, 150
ROUNDING = 2e-6  # relative, of powers and products in float32
WEIGHTS = {
    "int8": {"activations": "DYNAMIC_ROW"},
    "int4 in blocks of 32": {"weight_type": "INT4", "activations": "FLOAT", "block_size": 32},
    "uint4 in blocks of 16": {"weight_type": "UINT4", "activations": "FLOAT", "block_size": 16},
    "mxfp4": {"weight_type": "MXFP4", "activations": "FLOAT"},
    "nvfp4": {"weight_type": "NVFP4", "activations": "FLOAT"},
}


def problem(seed=0):
    """Weights with a row of zeros, and inputs with channels of different size, of which two are always 0."""
    rng = np.random.default_rng(seed)
    w = rng.standard_t(5, size=(ROWS, COLUMNS)) * np.exp(rng.normal(size=(ROWS, 1)) / 2)
    x = rng.normal(size=(COUNT, ROWS)) * np.exp(2 * rng.normal(size=ROWS))
    w[3] = 0
    x[:, [5, 40]] = 0
    return w.astype(np.float32), x.astype(np.float32)


def multiply(w, x):
    return x @ w


def prepared(w, x, scheme, function=multiply):
    """The arrays that the site stores, and what calibration observed of its input."""
    observed = transform.calibrate(function, w, [x], recipe(scheme))
    _, quantized_params = transform.quantize(function, w, recipe(scheme), x, calibration=observed)
    return quantized_params["sites"]["matmul"], observed["matmul"]


@one_in(4, "strength", [0.8, 0, 0.5, 1], gate=3)
def test_smooth_quant(strength, count):
    """Also for batches and stacks of matrices, which share the factors of their input's channels."""
    w, x = problem()
    scheme = transform.Scheme(activations="DYNAMIC_ROW", smoothing=("SMOOTHQUANT", strength))
    stored, observed = prepared(w, x, scheme)
    expected = optimal_brain.smooth_quant(np.abs(x).max(0), w, strength)
    np.testing.assert_array_equal(observed.largest, np.abs(x).max(0))
    np.testing.assert_allclose(stored["smoothing"], expected, ROUNDING)
    assert_nearest(stored, w, scheme)

    batch_w, batch_x = np.stack([w, 3 * w[::-1]]), np.stack([x, x])
    stored, _ = prepared(batch_w, batch_x, scheme, lambda w, x: jnp.einsum("bmk,bkn->bmn", x, w))
    np.testing.assert_allclose(
        stored["smoothing"], optimal_brain.smooth_quant(np.abs(x).max(0), batch_w, strength), ROUNDING
    )
    count("factors of smoothing compared with NumPy", 2 * ROWS)


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_channels_of_zeros(size):
    """They take nothing from the accuracy of the others, whatever the size of these."""
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(64, 32)).astype(np.float32), rng.normal(size=(48, 64)).astype(np.float32) * np.float32(size)
    w[3], x[:, 5] = 0, 0
    scheme = recipe(transform.Scheme(activations="DYNAMIC_ROW", smoothing="SMOOTHQUANT"))
    apply, params = transform.quantize(multiply, w, scheme, x, calibration=transform.calibrate(multiply, w, [x], scheme))
    exact = x.astype(np.float64) @ w
    assert 10 * np.log10(np.var(exact) / np.var(apply(params, x) - exact)) > 38


def assert_nearest(stored, w, scheme):
    """Asserts that the integers are those of the divided weights, rounded to nearest."""
    divided = w / np.asarray(stored["smoothing"])[:, None]
    expected = formats.quantize(np, divided, transform.Scheme(activations="DYNAMIC_ROW"))
    np.testing.assert_array_equal(stored["values"].unpack(), expected.values)
    np.testing.assert_array_equal(stored["scale"], expected.scale[0])


def test_extreme_channels():
    """Factors lie between 2**-14 and 2**14, so that inputs of float16 can be multiplied by them."""
    w, x = problem()
    x[:, 0], x[:, 1] = x[:, 10] * np.float32(2.0**40), x[:, 10] * np.float32(2.0**-40)
    for smoothing in ("SMOOTHQUANT", "AWQ"):
        stored, _ = prepared(w, x, transform.Scheme(activations="DYNAMIC_ROW", smoothing=smoothing))
        factors = np.asarray(stored["smoothing"])
        assert (factors >= 2.0**-14).all()
        assert (factors <= 2.0**14).all()
        if smoothing == "SMOOTHQUANT":
            np.testing.assert_array_equal(factors[[0, 1]], [2.0**-14, 2.0**14])


@one_in(10, ("format", "rotation"), itertools.product(WEIGHTS, [None, "HADAMARD"]), gate=3)
def test_awq(format, rotation, count):
    """The factors of the exponent whose error of the output is the smallest."""
    w, x = problem()
    scheme = transform.Scheme(**WEIGHTS[format], smoothing="AWQ", rotation=rotation)
    stored, observed = prepared(w, x, scheme)
    products = np.asarray(observed.products, np.float64)
    candidates = optimal_brain.awq_candidates(np.abs(x).mean(0))
    errors = np.array([awq_error(scheme, w, products, factors) for factors in candidates])
    factors = np.asarray(stored["smoothing"])
    matching = [np.allclose(factors, candidate, ROUNDING, 0) for candidate in candidates]
    assert sum(matching) == 1
    taken = matching.index(True)
    assert errors[taken] <= errors.min() * (1 + 1e-4)
    assert errors[taken] < errors[0]  # of no smoothing
    assert (factors[[5, 40]] == 1).all()
    print(f"{format}, {rotation}: exponent {taken / 20}, error {errors[taken]:.5g}, without {errors[0]:.5g}")
    count("factors of smoothing compared with NumPy", ROWS)
    count("AWQ: errors of exponents computed in NumPy", len(errors))
    count("AWQ: exponents that are not the best in NumPy, but equal within rounding", int(taken != errors.argmin()))


def awq_error(scheme, w, products, factors):
    changed = (w / factors[:, None]).astype(np.float32)
    products = products * np.outer(factors, factors)
    if scheme.rotation is not None:
        changed = optimal_brain.rotated_weights(changed).astype(np.float32)
        products = optimal_brain.rotated_products(products)
    rounded = formats.dequantize(np, formats.quantize(np, changed, scheme), scheme, np.dtype(np.float32))
    return optimal_brain.output_error(rounded.astype(np.float64) - changed, products)


@pytest.mark.gate
def test_awq_of_batches():
    """One exponent for all matrices, whose errors are added."""
    w, x = problem()
    w, x = np.stack([w, 3 * w[::-1]]), np.stack([x, x[:, ::-1]])
    scheme = transform.Scheme(weight_type="INT4", activations="FLOAT", block_size=32, smoothing="AWQ")
    stored, observed = prepared(w, x, scheme, lambda w, x: jnp.einsum("bmk,bkn->bmn", x, w))
    candidates = optimal_brain.awq_candidates(np.abs(x).mean((0, 1)))
    products = np.asarray(observed.products, np.float64)
    errors = np.array(
        [sum(awq_error(scheme, *each, factors) for each in zip(w, products, strict=True)) for factors in candidates]
    )
    np.testing.assert_allclose(stored["smoothing"], candidates[errors.argmin()], ROUNDING)
