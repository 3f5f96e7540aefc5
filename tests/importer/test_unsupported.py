"""Models with nodes that are not supported: one error, with a line for what several nodes have in common."""

import importlib

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

MODEL = importlib.import_module("onnx.parser").parse_model("""<ir_version: 10,
  opset_import: ["" : 21, "com.microsoft" : 1, "example" : 3]>
model (float[2] x, bool c) => (float[2] y) {
  a = example.Fast (x)
  b = example.Fast <speed = 2> (a)
  d = RandomUniformLike (b)
  e = com.microsoft.Gelu <slope = 1> (d)
  f = com.microsoft.Gelu <slope = 2> (e)
  g = com.microsoft.Gelu <slope = 1> (f)
  h = com.microsoft.Gelu (g, x)
  y = If (c) <then_branch = inner () => (float[2] i) { i = example.Fast (h) },
              else_branch = other () => (float[2] j) { j = example.Slow (h) }>
}""")


def test_lines_of_the_error():
    """Nodes in branches are counted, too; each attribute that is not supported has its line."""
    with pytest.raises(ModelError) as error:
        jquant.onnx.load(MODEL)
    assert str(error.value).splitlines() == [
        "the model is not supported:",
        "  node 'a' (example.Fast, version 3) and 2 more: this operator is not supported",
        "  node 'd' (RandomUniformLike, version 21): this operator is not supported: "
        "its numbers are random, and no two libraries draw the same ones",
        "  node 'e' (com.microsoft.Gelu, version 1) and 1 more: its attribute slope = 1 is not supported",
        "  node 'f' (com.microsoft.Gelu, version 1): its attribute slope = 2 is not supported",
        "  node 'h' (com.microsoft.Gelu, version 1): its operand number 2 is not supported",
        "  node 'y/else_branch/j' (example.Slow, version 3): this operator is not supported",
    ]
