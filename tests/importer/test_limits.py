"""Results that are too large for memory are refused before they are computed."""

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx import parser  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402


def check_refused(text: str, x: np.ndarray, message: str) -> None:
    """In a jitted call and in an eager one; static results are computed by NumPy in both."""
    model = jquant.onnx.load(parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text))
    for function in (jax.jit(model), model):
        with pytest.raises(ModelError, match=message):
            function(model.params, {"x": x})


def test_results_that_depend_on_inputs():
    x = np.ones((1, 1), np.float32)
    shape = "<int64[2] shape = {100000, 100000}>"
    message = r"node 'y' \(Expand, version 17\): a result would be float32\[100000, 100000\], which is 40,000,000,000 bytes"
    check_refused(f"net (float[1, 1] x) => (float[a, b] y) {shape} {{ y = Expand (x, shape) }}", x, message)
    outer = "net (float[n, 1] x) => (float[a, b] y) { t = Transpose (x) y = Add (x, t) }"
    check_refused(outer, np.ones((100_000, 1), np.float32), r"node 'y' \(Add, version 17\): a result would be float")


def test_static_results():
    """NumPy computes while tracing what a size depends on."""
    text = """net (float[1] x) => (float[n] y) <int64[2] shape = {100000, 100000}, int64[1] axes = {0}, int64[1] one = {1}> {
      many = Expand (one, shape)
      sum = ReduceSum <keepdims = 0> (many)
      wanted = Unsqueeze (sum, axes)
      y = Expand (x, wanted)
    }"""
    check_refused(text, np.ones(1, np.float32), r"node 'many' \(Expand, version 17\): a result would be int")


def test_output_listed_twice():
    """It is one result: results are by name."""
    proto = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> net (float[2] x) => (float[2] y) { y = Relu (x) }')
    proto.graph.output.append(proto.graph.output[0])
    model = jquant.onnx.load(proto)
    results = model(model.params, {"x": np.float32([-1, 2])})
    assert list(results) == ["y"]
    np.testing.assert_array_equal(results["y"], [0, 2])


def test_types_are_checked_once():
    """A call without `jit` traces the model first, for inputs of types that it has not been given yet."""
    calls = []

    def relu(x):
        calls.append(isinstance(x, jax.core.Tracer))
        return jax.numpy.maximum(x, 0)

    text = '<ir_version: 8, opset_import: ["" : 17]> net (float[n] x) => (float[m, n] y) { s = Shape (x) t = Size (x)' + (
        "u = Unsqueeze (t, a) v = Concat <axis = 0> (u, s) r = Relu (x) y = Expand (r, v) }"
    )
    proto = parser.parse_model(text.replace("{", "<int64[1] a = {0}> {", 1))
    model = jquant.onnx.load(proto, overrides={"Relu": relu})

    def call(size: int) -> list[bool]:
        """Whether `relu` was traced, in each of its calls."""
        calls.clear()
        result = model(model.params, {"x": np.arange(-1, size - 1, dtype=np.float32)})["y"]
        np.testing.assert_array_equal(result, [[0, *range(size - 1)]] * size)
        return list(calls)

    assert [call(3), call(3), call(4), call(3)] == [[True, False], [False], [True, False], [False]]
    with jax.default_matmul_precision("highest"):
        assert [call(3), call(3)] == [[True, False], [False]]
    calls.clear()
    with pytest.raises(ModelError, match=r"a result would be float32\[50000, 50000\]"):
        model(model.params, {"x": np.zeros(50_000, np.float32)})
    assert calls == [True]
