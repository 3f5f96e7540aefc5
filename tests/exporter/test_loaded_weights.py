"""Models that were loaded, with weights that nodes compute, quantized once more and exported: the sites stay the same."""

import jax
import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from onnx import checker, numpy_helper, parser
from support.saturation import need_exact_products

import jquant
from jquant import transform
from jquant.onnx import export, load

from .running import run

numbers = np.random.default_rng(0)


def _integers(*shape: int) -> np.ndarray:
    return numbers.integers(-127, 128, shape).astype(np.int8)


def _floats(*shape: int) -> np.ndarray:
    return (numbers.standard_normal(shape) / 8).astype(np.float32)


TENTH = np.float32(0.1)
POSITIONS = {
    "positions": np.arange(256)[None],
    "first": np.int64([0]),
    "axis": np.int64([1]),
    "rows": _integers(256, 16),
    "row_scales": _floats(256, 1),  # which are enough for a site of their own
}
INTERNAL = "(int64[b, l] x) => (float[b, l, 16] y)"
EXTERNAL = "(float[b, 16] x) => (float[b, n] y)"
CASES = {  # a graph, and its initializers
    "int8 rows at known positions": (
        f"{INTERNAL} {{ words = Gather (table, x) floats = Cast <to = 1> (words) scaled = Mul (floats, s)"
        " length = Shape <start = 1, end = 2> (x) places = Slice (positions, first, length, axis) r = Gather (rows, places)"
        " rf = Cast <to = 1> (r) rs = Gather (row_scales, places) rx = Mul (rf, rs) sum = Add (scaled, rx)"
        " y = MatMul (sum, w) }",
        {"table": _integers(64, 16), "s": TENTH, "w": _floats(16, 16), **POSITIONS},
    ),
    "rows that are weights": (
        f"{EXTERNAL} {{ r = Gather (q, places) f = Cast <to = 1> (r) m = Mul (f, s) t = Transpose (m) y = MatMul (x, t) }}",
        {"q": _integers(64, 16), "s": _floats(64, 1), "places": np.arange(64)},
    ),
    "dequantized": (
        f"{EXTERNAL} {{ w = DequantizeLinear <axis = 1> (q, s, z) y = MatMul (x, w) }}",
        {"q": _integers(16, 24), "s": _floats(24), "z": _integers(24)},
    ),
    "dequantized table": (
        f"{INTERNAL} {{ t = DequantizeLinear (q, s) e = Gather (t, x) y = MatMul (e, w) }}",
        {"q": _integers(64, 16), "s": TENTH, "w": _floats(16, 16)},
    ),
    "quantized by nodes": (
        f"{EXTERNAL} {{ q = QuantizeLinear (a, s) w = DequantizeLinear (q, s) y = MatMul (x, w) }}",
        {"a": _floats(16, 24), "s": TENTH},
    ),
    "quantized dynamically": (
        f"{EXTERNAL} {{ q, s, z = DynamicQuantizeLinear (a) w = DequantizeLinear (q, s, z) y = MatMul (x, w) }}",
        {"a": _floats(16, 24)},
    ),
}


def _model(case: str) -> jquant.onnx.Model:
    text, arrays = CASES[case]
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> net {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items())
    checker.check_model(model, full_check=True)
    return load(model)


@pytest.mark.suite
@pytest.mark.parametrize("case", CASES)
def test_quantized_again(case):
    model = _model(case)
    x = np.arange(10, dtype=np.int32).reshape(2, 5) if CASES[case][0].startswith(INTERNAL) else _floats(3, 16)

    def apply(params, x):
        return model(params, {"x": x})["y"]

    function, params = transform.quantize(apply, model.params, transform.dynamic_int8, x)
    expected = jax.jit(function)(params, x)
    exported = export(function, params, x)
    assert "MatMulInteger" in [node.op_type for node in exported.graph.node]
    plain = np.asarray(apply(model.params, x))
    np.testing.assert_allclose(expected, plain, atol=np.abs(plain).max() / 20)
    need_exact_products(np.uint8, np.int8)
    for optimized in (False, True):
        np.testing.assert_array_equal(run(exported, [x], optimized=optimized)[0], expected)


def test_weights_that_differ():
    """Export compares weights, too: these are computed in another way for other inputs."""

    def apply(params, x):
        weights = jquant.dequantize_linear(params["q"], params["s"], None, output_dtype=np.float32)
        return x @ (weights if x.shape[0] < 4 else weights * 2)

    params = {"q": _integers(16, 24), "s": np.full((1, 1), TENTH)}
    function, quantized = transform.quantize(apply, params, transform.dynamic_int8, _floats(3, 16))
    export(function, quantized, _floats(2, 16))
    with pytest.raises(transform.TransformError, match="different weights from those that are packed"):
        export(function, quantized, _floats(4, 16))
