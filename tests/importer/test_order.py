"""Models whose nodes are not in the order in which they can be computed."""

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from onnx import parser  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

UNSORTED = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
net (float[n] x, bool condition) => (float[n] y) {
  y = Add (chosen, twice)
  chosen = If (condition) <
    then_branch = t () => (float[n] t) { t = Sub (t1, twice) t1 = Mul (x, inverse) },
    else_branch = e () => (float[n] e) { e = local.both (twice) }>
  inverse = Neg (x)
  twice = Add (x, x)
}
<domain: "local", opset_import: ["" : 21]> both (a) => (c) { c = Add (b, a) b = Neg (a) }"""


def test_unsorted_nodes():
    """In the graph, in branches, which read values of the surrounding graph, and in functions."""
    proto, x = parser.parse_model(UNSORTED), np.float32([1, 2, 3])
    model = jquant.onnx.load(proto)
    for condition, branch in ((np.array(True), x * -x - 2 * x), (np.array(False), -2 * x + 2 * x)):
        y = jax.jit(model)(model.params, {"x": x, "condition": condition})["y"]
        np.testing.assert_array_equal(y, branch + 2 * x)
    assert proto == parser.parse_model(UNSORTED)


def test_files_of_onnxruntimes_quantizer(tmp_path):
    """quantize_dynamic appends nodes at the end; in a message, the reverse order is sorted as well."""
    quantization = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime's tools are not installed")
    text = "net (float[n, 4] x) => (float[n, 3] y) { h = MatMul (x, w) r = Relu (h) y = MatMul (r, v) }"
    proto, rng = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text), np.random.default_rng(0)
    for name, shape in (("w", (4, 5)), ("v", (5, 3))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    quantization.quantize_dynamic(proto, tmp_path / "model.onnx")
    written = onnx.load(tmp_path / "model.onnx")
    nodes = list(written.graph.node)
    del written.graph.node[:]
    written.graph.node.extend(nodes[::-1])
    for source in (tmp_path / "model.onnx", written):
        model, x = jquant.onnx.load(source), rng.normal(size=(2, 4)).astype(np.float32)
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(jax.jit(model)(model.params, {"x": x})["y"], session.run(None, {"x": x})[0], 1e-5)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("y = Add (x, b) b = Neg (a) a = Relu (b)", "the nodes need each other's results: "),
        ("y = Neg (a) a = Add (x, a)", "the nodes need each other's results: 'a' (Add) reads 'a' of 'a' (Add)"),
        ("y = Add (a, z) a = Neg (x)", "node 'y' (Add): nothing computes 'z'"),
        ("y = Add (x, z)", "'z'"),
        ("y = Neg (a) a = If (c) <then_branch = t () => (float[n] t) { t = Neg (z) }, "
         "else_branch = e () => (float[n] e) { e = Neg (x) }> c = IsNaN (x)", "node 'a' (If): nothing computes 'z'"),
        ("y = Neg (a) a = If (c) <then_branch = t () => (float[n] t) { t = Neg (y) }, "
         "else_branch = e () => (float[n] e) { e = Neg (x) }> c = IsNaN (x)", "'y' (Neg) reads 'a' of 'a' (If)"),
    ],
)  # fmt: skip
def test_nodes_that_cannot_be_sorted(nodes, message):
    with pytest.raises(ModelError, match=r"^the model: ") as raised:
        jquant.onnx.load(
            parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> net (float[n] x) => (float[n] y) {{{nodes}}}')
        )
    assert message in str(raised.value)
    if message.endswith("results: "):
        for part in ("'b' (Neg) reads 'a' of 'a' (Relu)", "'a' (Relu) reads 'b' of 'b' (Neg)"):
            assert part in str(raised.value)
