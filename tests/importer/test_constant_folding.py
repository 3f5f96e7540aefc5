"""Models that compute and transpose their weights, with the weights as constants of a program: XLA folds all of it."""

import jax
import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import onnx.parser
import onnxruntime

import jquant.onnx

HEADER = '<ir_version: 10, opset_import: ["" : 21]>'
COMPUTED = {
    "BitShift": 'v = BitShift <direction = "RIGHT"> (w, one)',
    "Where": "v = Where (mask, w, seven)",
    "Gather": "v = Gather <axis = 0> (w, rows)",
    "Slice": "v = Slice (w, end, start, axis, back)",
    "Concat": "v = Concat <axis = 0> (w, w)",
    "Clip": "v = Clip (w, seven, most)",
    "Div": "v = Div (w, three)",
    "Pad": "v = Pad (w, edges, seven)",
    "TopK": "v, indices = TopK <axis = 0, sorted = 1> (w, count)",
    "CumSum": "c = Cast <to = 6> (w)\n s = CumSum (c, zero)\n t = BitwiseAnd (s, low)\n v = Cast <to = 2> (t)",
    "ScatterND": "v = ScatterND (w, row, other)",
    "nibbles": 'a = BitwiseAnd (w, fifteen)\n h = BitShift <direction = "RIGHT"> (w, four)\n v = Concat <axis = 0> (a, h)',
}
CHANGED = {"": "", "changed": "u = BitwiseXor (t0, three)\n n = Max (u, one)"}
CONSUMERS = {
    "MatMulInteger": ("int32[rows, n]", "y = MatMulInteger (x, {w}, x_zero, w_zero)"),
    "QLinearMatMul": ("uint8[rows, n]", "y = QLinearMatMul (x, scale, x_zero, {w}, scale, w_zero, scale, x_zero)"),
    "DequantizeLinear": (
        "float[rows, n]",
        "p = DequantizeLinear ({w}, scale, w_zero)\n f = Cast <to = 1> (x)\n y = MatMul (f, p)",
    ),
    "ConvInteger": (
        "int32[rows, n, 1, 1]",
        "x4 = Reshape (x, image)\n w4 = Unsqueeze ({w}, last)\n w5 = Transpose <perm = [1, 0, 2, 3]> (w4)\n"
        " y = ConvInteger (x4, w5, x_zero, w_zero)",
    ),
}
NUMBERS = {"one": 1, "three": 3, "four": 4, "seven": 7, "fifteen": 15, "most": 200, "x_zero": 9, "w_zero": 5}


def model(computed: str, changed: str, consumer: str) -> onnx.ModelProto:
    """A model whose weights are computed from an initializer of shape (6, 8), transposed, and consumed.

    Args:
      computed, changed, consumer: keys of `COMPUTED`, of `CHANGED`, which follows the transposition, and of `CONSUMERS`.
    """
    output, call = CONSUMERS[consumer]
    weights = "n" if changed else "t0"
    body = COMPUTED[computed], "t0 = Transpose <perm = [1, 0]> (v)", CHANGED[changed], call.format(w=weights)
    proto = onnx.parser.parse_model(f"{HEADER} m (uint8[rows, 8] x) => ({output} y) {{\n" + "\n".join(body) + "\n}")
    rng = np.random.default_rng(0)
    tensors = {
        "w": rng.integers(0, 256, (6, 8), np.uint8),
        "mask": rng.random((6, 8)) < 0.5,
        "rows": np.array([4, 0, 5, 2, 2, 1]),
        "other": rng.integers(0, 256, (1, 8), np.uint8),
        "row": np.array([[2]]),
        "scale": np.array(0.25, np.float32),
        "image": np.array([-1, 8, 1, 1]),
        "last": np.array([2, 3]),
        "edges": np.array([1, 0, 0, 0]),
        "end": np.array([5]),
        "start": np.array([-7]),
        "axis": np.array([0]),
        "back": np.array([-1]),
        "count": np.array([4]),
        "zero": np.array(0),
        "low": np.array(255, np.int32),
        **{name: np.array(number, np.uint8) for name, number in NUMBERS.items()},
    }
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in tensors.items())
    return proto


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_weights_as_constants(consumer, gate):
    x = np.random.default_rng(1).integers(0, 256, (3, 8), np.uint8)
    for number, computed in enumerate(COMPUTED):
        for changed in CHANGED if gate else list(CHANGED)[number % 2 :][:1]:
            proto = model(computed, changed, consumer)
            loaded = jquant.onnx.load(proto)
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
            (expected,) = session.run(None, {"x": x})
            actual = jax.jit(lambda x, loaded=loaded: loaded(loaded.params, {"x": x}))(x)["y"]
            np.testing.assert_array_equal(actual, expected, f"{computed} {changed}")
