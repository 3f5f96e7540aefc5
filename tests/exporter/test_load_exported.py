"""Functions of operators that are exported, and loaded again: the integers of the function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant  # noqa: E402
import jquant.onnx  # noqa: E402
from jquant import transform  # noqa: E402

RNG = np.random.default_rng(4747)
EXTENDED = jquant.FeatureLevel.EXTENDED


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def integers(dtype, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


X, SCALE, ZERO = floats(6, 16), np.float32(0.03), np.uint8(121)
A, B, BIAS = integers(np.uint8, 6, 16), integers(np.int8, 16, 8), integers(np.int32, 8) >> 16
IMAGES, FILTERS = integers(np.uint8, 2, 3, 8, 8), integers(np.int8, 4, 3, 3, 3)
SCALES = RNG.uniform(0.001, 0.003, 8).astype(np.float32)
OPERATORS = {
    "quantize_linear": lambda x: jquant.quantize_linear(x, SCALE, ZERO),
    "dequantize_linear": lambda x: jquant.dequantize_linear(jquant.quantize_linear(x, SCALE, ZERO), SCALE, ZERO),
    "dynamic_quantize_linear": lambda x: jquant.dynamic_quantize_linear(x),
    "matmul_integer": lambda x: jquant.matmul_integer(jquant.quantize_linear(x, SCALE, ZERO), B, ZERO, np.int8(3)),
    "quantized_linear_matmul": lambda x: jquant.quantized_linear_matmul(
        jquant.quantize_linear(x, SCALE, ZERO), SCALE, ZERO, B, SCALES, np.zeros(8, np.int8), np.float32(0.02), np.uint8(5)
    ),
    "quantized_linear_add": lambda x: jquant.quantized_linear_add(
        jquant.quantize_linear(x, SCALE, ZERO), SCALE, ZERO, A, SCALE, ZERO, np.float32(0.05), np.uint8(100)
    ),
}
NETWORK = {"hidden": floats(16, 32), "bias": floats(1, 32), "head": floats(32, 8)}


def network(params, x):
    hidden = jax.nn.relu(x @ params["hidden"] + params["bias"])
    return hidden @ params["head"]


def check(function, arguments, exported):
    """Checks that the model, loaded, gives the function's arrays: all integers, and floats up to the last bits."""
    loaded = jquant.onnx.load(exported)
    inputs = {value.name: argument for value, argument in zip(exported.graph.input, arguments[-1:], strict=True)}
    actual = list(loaded(loaded.params, inputs).values())
    expected = jax.tree.leaves(function(*arguments))
    for mine, theirs in zip(actual, expected, strict=True):
        if jnp.issubdtype(theirs.dtype, jnp.integer):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
        else:
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    function = OPERATORS[name]
    check(function, (X,), jquant.onnx.export(function, X))


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param("dynamic_int8", marks=pytest.mark.gate),
        "static_int8",
        pytest.param("weight_only_int4", marks=pytest.mark.full),
    ],
)
def test_quantized_networks(recipe):
    """And exported, loaded and exported again, the model is the same."""
    chosen = getattr(transform, recipe)
    calibration = transform.calibrate(network, NETWORK, [(X,)], chosen) if recipe == "static_int8" else None
    apply, params = transform.quantize(network, NETWORK, chosen, X, calibration=calibration)
    exported = jquant.onnx.export(apply, params, X)
    check(apply, (params, X), exported)
    loaded = jquant.onnx.load(exported)
    again = jquant.onnx.export(loaded, loaded.params, {exported.graph.input[0].name: X})
    assert [node.op_type for node in again.graph.node] == [node.op_type for node in exported.graph.node]
