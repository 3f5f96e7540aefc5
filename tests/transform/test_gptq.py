"""GPTQ: what `transform.quantize` stores are the numbers of an optimal brain quantization in NumPy's float64."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import optimal_brain
from support.comparison import assert_equal
from support.draw import Draw
from support.networks import recipe
from support.sampling import one_in

from jquant import transform

FORMATS = {
    "int4 by channel": {"weight_type": "INT4", "activations": "FLOAT"},
    "int4 in blocks of 32": {"weight_type": "INT4", "activations": "FLOAT", "block_size": 32},
    "int4 in blocks of 16, float16": {
        "weight_type": "INT4",
        "activations": "DYNAMIC_ROW",
        "block_size": 16,
        "scale_type": "FLOAT16",
    },
    "uint4 by channel": {"weight_type": "UINT4", "activations": "FLOAT"},
    "uint4 in blocks of 32": {"weight_type": "UINT4", "activations": "FLOAT", "block_size": 32},
    "uint4 in blocks of 16": {"weight_type": "UINT4", "activations": "DYNAMIC_ROW", "block_size": 16},
    "int8 in columns": {},
    "uint8 in columns": {"weight_type": "UINT8"},
    "int8 in blocks of 16": {"activations": "FLOAT", "block_size": 16},
    "int4 by tensor": {"weight_type": "INT4", "activations": "FLOAT", "weights": "PER_TENSOR"},
    "int8 by tensor": {"weights": "PER_TENSOR"},
    "int2 in blocks of 16": {"weight_type": "INT2", "activations": "FLOAT", "block_size": 16},
    "int2 in blocks of 32": {"weight_type": "INT2", "activations": "FLOAT", "block_size": 32},
    "float8e4m3fn by channel": {"weight_type": "FLOAT8E4M3FN", "activations": "FLOAT"},
    "float8e5m2 in blocks of 32": {"weight_type": "FLOAT8E5M2", "activations": "FLOAT", "block_size": 32},
    "mxfp4 in blocks of 32": {"weight_type": "MXFP4", "activations": "FLOAT"},
    "mxfp4 in blocks of 16": {"weight_type": "MXFP4", "activations": "FLOAT", "block_size": 16},
    "mxint8": {"weight_type": "MXINT8", "activations": "FLOAT"},
    "nvfp4": {"weight_type": "NVFP4", "activations": "FLOAT"},
}
SIZES = {  # K, N, the rows of X, and whether some inputs are always 0
    "256 x 256": (256, 256, 600, False),
    "256 x 64, fewer rows than K": (256, 64, 60, False),
    "128 x 20, dead inputs": (128, 20, 300, True),
    "72 x 5, fewer rows, dead inputs": (72, 5, 40, True),
    "50 x 2": (50, 2, 200, False),
    "33 x 7, fewer rows": (33, 7, 20, False),
    "4 x 3": (4, 3, 9, False),
}
OPTIONS = list(itertools.product([0.01, 0.1], [True, False]))
CASES = [
    (format, size, OPTIONS[(number + number // len(SIZES)) % len(OPTIONS)])
    for number, (format, size) in enumerate(itertools.product(FORMATS, SIZES))
]
NEAR_TIE = 1e-4  # steps


def problem(rows, columns, count, has_dead_inputs):
    """Weights, and inputs that are correlated, some much larger than others."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(count, rows)) @ (np.eye(rows) + rng.normal(size=(rows, rows)) / rows**0.5)
    x *= np.exp(rng.normal(size=rows) / 2)
    if has_dead_inputs:
        x[:, ::7] = 0
    return rng.standard_t(6, size=(rows, columns)).astype(np.float32), x.astype(np.float32)


def multiply(w, x):
    return x @ w


def assert_optimal_brain(scheme, w, hessian, stored, count):
    """The numbers are equal, but in columns where the first that differs was nearly a tie: later rows follow from it.

    Returns what was compared, as text.
    """
    _, damping, by_diagonal = scheme.weight_rounding
    hessian, allowed = optimal_brain.damped(hessian, damping), optimal_brain.elements(scheme.weight_type)
    expected = optimal_brain.optimal_brain(w, hessian, stored, allowed, by_diagonal=by_diagonal)
    rows, columns = w.shape
    differs = (stored.numbers != expected.numbers)[expected.order]
    columns_that_differ = np.flatnonzero(differs.any(0))
    first = expected.order[differs.argmax(0)]
    assert (expected.distances[first, range(columns)][columns_that_differ] < NEAR_TIE).all()
    count("numbers of GPTQ compared with optimal brain quantization", w.size)
    count("numbers of GPTQ that differ, after a tie", int(differs.sum()))
    count("columns of GPTQ compared with optimal brain quantization", columns)
    count("columns of GPTQ with a tie", len(columns_that_differ))

    nearest = optimal_brain.to_nearest(w, stored, allowed)
    error, error_of_nearest = (
        optimal_brain.output_error(stored.real(numbers) - w, hessian) for numbers in (stored.numbers, nearest)
    )
    assert error < error_of_nearest or rows < 32  # there, a greedy choice may be worse
    differing = f"{differs.sum()} numbers in {len(columns_that_differ)} of {columns} columns differ"
    return f"{differing}; error {error:.4g}, to nearest {error_of_nearest:.4g}"


@one_in(41, ("format", "size", "options"), CASES, gate=12)
def test_optimal_brain(format, size, options, count):
    rows = SIZES[size][0]
    w, x = problem(*SIZES[size])
    scheme = transform.Scheme(**FORMATS[format], weight_rounding=("GPTQ", *options))
    calibration = transform.calibrate(multiply, w, np.array_split(x, 2), recipe(scheme))
    _, quantized_params = transform.quantize(multiply, w, recipe(scheme), x, calibration=calibration)
    stored = optimal_brain.read(scheme, quantized_params["sites"]["matmul"], rows)
    products = np.asarray(calibration["matmul"].products, np.float64)
    print(f"{format}, {size}, {options}: {assert_optimal_brain(scheme, w, products, stored, count)}")


@pytest.mark.gate
@one_in(2, "smoothing", ["AWQ", "SMOOTHQUANT", None], others="full")
def test_prepared_weights(smoothing, count):
    """What is rounded are the weights, divided by the factors and rotated, for the X^T X of such inputs."""
    w, x = problem(96, 24, 150, False)
    fields = {"weight_type": "INT4", "activations": "FLOAT", "block_size": 16, "weight_range": "mean_squared_error"}
    scheme = transform.Scheme(**fields, rotation="HADAMARD", smoothing=smoothing, weight_rounding=("GPTQ", 0.01, True))
    calibration = transform.calibrate(multiply, w, [x], recipe(scheme))
    _, quantized_params = transform.quantize(multiply, w, recipe(scheme), x, calibration=calibration)
    site = quantized_params["sites"]["matmul"]
    stored = optimal_brain.read(scheme, site, len(w))
    factors = np.asarray(site["smoothing"], np.float64) if smoothing else np.ones(len(w))
    products = np.asarray(calibration["matmul"].products, np.float64) * np.outer(factors, factors)
    changed = optimal_brain.rotated_weights(w / factors[:, None])
    print(f"{smoothing}: {assert_optimal_brain(scheme, changed, optimal_brain.rotated_products(products), stored, count)}")


@pytest.mark.gate
def test_dead_inputs_without_damping(count):
    """They have no part in any sum: X^T X is singular, and their rows are rounded to nearest."""
    w, x = problem(*SIZES["128 x 20, dead inputs"])
    scheme = transform.Scheme(**FORMATS["int4 in blocks of 32"], weight_rounding=("GPTQ", 0, True))
    calibration = transform.calibrate(multiply, w, [x], recipe(scheme))
    _, quantized_params = transform.quantize(multiply, w, recipe(scheme), x, calibration=calibration)
    stored = optimal_brain.read(scheme, quantized_params["sites"]["matmul"], len(w))
    products = np.asarray(calibration["matmul"].products, np.float64)
    assert_optimal_brain(scheme, w, products, stored, count)
    nearest = optimal_brain.to_nearest(w, stored, optimal_brain.elements("INT4"))
    np.testing.assert_array_equal(stored.numbers[::7], nearest[::7])


@pytest.mark.gate
@one_in(2, "format", ["int4 in blocks of 32", "uint8 in columns", "int8 by tensor"], others="full")
def test_several_matrices(format):
    """Each matrix of a batch or of layers has the integers that it has by itself; experts have X^T X of all rows."""
    scheme, draw = transform.Scheme(**FORMATS[format], weight_rounding="GPTQ"), Draw(0, exact=True)
    w, x = problem(40, 36, 8, False)[0].reshape(3, 40, 12), draw.input(3, 70, 40)  # with exact X^T X

    def numbers(function, w, *inputs):
        calibration = transform.calibrate(function, w, [inputs], recipe(scheme))
        _, quantized_params = transform.quantize(function, w, recipe(scheme), *inputs, calibration=calibration)
        return np.asarray(quantized_params["sites"]["matmul"]["values"].unpack().astype(np.int32))

    each = np.stack([numbers(multiply, *operands) for operands in zip(w, x, strict=True)])
    layers = numbers(lambda w, x: lax.scan(lambda _, layer: (0, layer[1] @ layer[0]), 0, (w, x))[1], w, x)
    np.testing.assert_array_equal(layers, each)
    if "tensor" not in format:  # a batch has one scale, too
        np.testing.assert_array_equal(numbers(lambda w, x: jnp.einsum("bmk,bkn->bmn", x, w), w, x), each)
        index = np.array([0, 2, 1], np.int32)
        experts = numbers(lambda w, x, i: jnp.einsum("bmk,bkn->bmn", x, w[i]), w, x, index)
        expected = np.stack([numbers(multiply, matrix, x.reshape(-1, 40)) for matrix in w])
        np.testing.assert_array_equal(experts, expected)


def embedded_and_convolved(params, tokens):
    """A table, a filter, and a matrix whose rows are no whole blocks."""
    x = params["table"][tokens]
    return lax.conv(jnp.swapaxes(x, 1, 2), params["filter"], (1,), "SAME"), x @ params["out"]


class TestTheReadyRecipe:
    @staticmethod
    def quantized(apply, recipe):
        draw = Draw(7)
        params = {"table": draw.weights(20, 33), "filter": draw.weights(8, 33, 3), "out": draw.weights(33, 9)}
        tokens = draw.indices(2, 7, below=20)
        calibration = transform.calibrate(apply, params, [tokens], recipe)
        return transform.quantize(apply, params, recipe, tokens, calibration=calibration)[1]["sites"]

    def test_each_site(self):
        """Products are rounded by GPTQ, tables from searched ranges, and convolutions to 8 bits."""
        int4 = {"weight_type": "INT4", "block_size": 32, "scale_type": "FLOAT16", "activations": "FLOAT"}
        searched = {**int4, "weight_range": "mean_squared_error"}
        rules = {
            "out": transform.Scheme(**searched, weight_rounding=("GPTQ", 0.01, True)),
            "table": transform.Scheme(**searched),
            "filter": transform.Scheme(activations="FLOAT"),
        }
        sites = self.quantized(embedded_and_convolved, transform.gptq_int4)
        assert_equal(sites, self.quantized(embedded_and_convolved, transform.Recipe([*rules.items()])))
        assert [str(sites[name]["values"].dtype) for name in rules] == ["int4", "int4", "int8"]
        assert sites["out"]["values"].shape == (33, 9)

    def test_without_convolutions(self):
        """The pattern that no site matches is no error, and an odd number of rows none either."""
        sites = self.quantized(lambda params, tokens: embedded_and_convolved(params, tokens)[1], transform.gptq_int4)
        assert set(sites) == {"table", "out"}
