"""What onnxruntime's optimizer makes of exported models: no node that computes something else."""

import collections
import functools
import itertools

import jax
import numpy as np
import pytest
from support.sampling import one_in
from support.saturation import need_exact_products, need_exact_products_of

import jquant
from jquant import transform

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from exporter.running import run  # noqa: E402

from jquant.onnx.exporter import export  # noqa: E402


def optimized(model, path) -> collections.Counter:
    """The nodes, with their domains, that onnxruntime's optimizer leaves."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(options.optimized_model_filepath).graph.node
    return collections.Counter((node.domain, node.op_type) for node in nodes)


def merged(model, path) -> set[str]:
    """The nodes of onnxruntime's own domains that the optimizer made."""
    before = {node.op_type for node in model.graph.node}
    after = optimized(model, path)
    return {operator for domain, operator in after if domain not in ("", "ai.onnx") and operator not in before}


def apply(params, x):
    h = jax.nn.relu(x @ params["hidden"] + params["b"])
    return h @ params["head"] + params["b"][:, :10]


PARAMS = {
    "hidden": np.random.default_rng(0).normal(size=(32, 64)).astype(np.float32),
    "head": np.random.default_rng(1).normal(size=(64, 10)).astype(np.float32),
    "b": np.random.default_rng(2).normal(size=(1, 64)).astype(np.float32) * 100,
}
X = np.random.default_rng(3).normal(size=(8, 32)).astype(np.float32) * 10 ** np.linspace(-2, 2, 8, dtype=np.float32)[:, None]
SCHEMES = {
    "dynamic": transform.Scheme(),
    "dynamic, tensor": transform.Scheme(weights="PER_TENSOR", activation_type="INT8"),
    "rows": transform.Scheme(activations="DYNAMIC_ROW"),
    "static": transform.Scheme(activations="STATIC"),
    "static int8": transform.Scheme(activations="STATIC", activation_type="INT8"),
    "blocks": transform.Scheme(activations="DYNAMIC_ROW", weight_type="INT4", block_size=32),
    "int4": transform.Scheme(activations="FLOAT", weight_type="INT4", block_size=32),
}


@functools.cache
def quantized(scheme: str):
    recipe = transform.Recipe([("*", SCHEMES[scheme])], smallest=1)
    is_static = SCHEMES[scheme].activations == "STATIC"
    calibration = transform.calibrate(apply, PARAMS, [(X,)], recipe) if is_static else None
    return transform.quantize(apply, PARAMS, recipe, X, calibration=calibration)


@one_in(3, ("domains", "scheme"), itertools.product([("com.microsoft",), ()], SCHEMES), gate=2)
def test_no_node_is_merged_that_computes_something_else(scheme, domains, tmp_path):
    need_exact_products_of(SCHEMES[scheme])
    function, params = quantized(scheme)
    model = export(function, params, X, domains=domains)
    assert merged(model, tmp_path) == set()
    (actual,), expected = run(model, [X], optimized=True), jax.jit(function)(params, X)
    if scheme == "int4":
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)
    else:
        np.testing.assert_array_equal(actual, expected)


def test_the_form_for_engines_is_merged(tmp_path):
    """With rows, the node that results computes something else: so these tests would see it."""
    function, params = quantized("rows")
    model = export(function, params, X, form="qdq")
    assert merged(model, tmp_path) == {"MatMulIntegerToFloat"}
    expected = jax.jit(function)(params, X)
    np.testing.assert_array_equal(run(model, [X], optimized=False)[0], expected)
    assert np.max(abs(run(model, [X], optimized=True)[0] - expected)) > 1


def test_dequantized_weights_are_merged_in_the_form_for_engines(tmp_path):
    """Into a node that quantizes activations; the exact form of the same product is not merged."""

    def product(params, x):
        return x @ params["hidden"]

    recipe = transform.Recipe([("*", SCHEMES["int4"])], smallest=1)
    function, params = transform.quantize(product, PARAMS, recipe, X)
    for form, expected in (("qdq", {"MatMulNBits"}), ("exact", set())):
        assert merged(export(function, params, X, form=form, domains=()), tmp_path) == expected


def test_scales_of_a_convolution(tmp_path):
    need_exact_products(np.uint8, np.int8)
    rng = np.random.default_rng(4)
    x, w = rng.integers(0, 256, (2, 3, 8, 8), np.uint8), rng.integers(-128, 128, (5, 3, 3, 3), np.int8)
    scales, bias = rng.uniform(0.1, 1, 5).astype(np.float32), rng.normal(size=5).astype(np.float32)

    def function(x, scale):
        return jquant.convolution_integer_to_float(x, scale, 3, w, scales, None, bias)

    scale = np.float32(0.3)
    model = export(function, x, scale)
    assert merged(model, tmp_path) == set()
    np.testing.assert_array_equal(run(model, [x, scale], optimized=True)[0], jax.jit(function)(x, scale))
