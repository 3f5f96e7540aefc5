"""Shape arithmetic while sizes are left open: of a shape with names, what is a number is computed as a number."""

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx import parser  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402


def exported(text: str, sizes: str) -> jax.export.Exported:
    """A model of images with the sizes `sizes`, some of which have names."""
    image = "image (float[batch, 3, height, width] x) => "
    model = jquant.onnx.load(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {image} {text}'))
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape(sizes), np.float32)
    return jax.export.export(jax.jit(model))(model.params, {"x": shape})


@pytest.mark.parametrize(
    "nodes",
    [
        "h = Gather (s, two) limit = Cast <to = 7> (h)",
        "h = Gather (s, two) limit = Identity (h)",
        "h = Gather (s, two) f = Cast <to = 1> (h) p = Mul (f, f) q = Sqrt (p) c = Ceil (q) limit = Cast <to = 7> (c)",
        "h = Slice (s, twos, threes) f = Cast <to = 1> (h) c = Cast <to = 7> (f) limit = Squeeze (c)",
        "h = Gather (s, two) n = Neg (h) a = Abs (n) m = Mod (a, ten) limit = Min (m, ten)",
        "all = SplitToSequence <keepdims = 0> (s) h = SequenceAt (all, two) f = Cast <to = 1> (h) limit = Cast <to = 7> (f)",
        "b, c, h, w = Split (s) f = Cast <to = 1> (h) i = Cast <to = 7> (f) limit = Squeeze (i)",
        "numbers = Gather (s, places) m = ReduceMax <keepdims = 0> (numbers) limit = Cast <to = 7> (m)",
    ],
)
def test_numbers_of_a_shape_with_names(nodes):
    """A range up to the height, which is fixed, while the batch is not."""
    constants = """<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 ten = {10}, int64[1] twos = {2},
      int64[1] threes = {3}, int64[2] places = {3, 2}>"""
    text = f"(float[k] y) {constants} {{ s = Shape (x) {nodes} r = Range (zero, limit, one) y = Cast <to = 1> (r) }}"
    assert [each.shape for each in exported(text, "batch, 3, 8, 4").out_avals] == [(8,)]


def test_a_name_that_is_left():
    """Of a shape with two names, one cancels out, and the other remains a size."""
    text = """(float[k] y) <int64 zero = {0}, int64 one = {1}, int64 two = {2}> {
      s = Shape (x) b = Gather (s, zero) h = Gather (s, two) n = Sub (h, b) both = Add (n, b) l = Cast <to = 7> (both)
      r = Range (zero, l, one) y = Cast <to = 1> (r) }"""
    assert [str(each.shape) for each in exported(text, "batch, 3, h, 4").out_avals] == ["(h,)"]
    assert [str(each.shape) for each in exported(text, "batch, 3, 8, 4").out_avals] == ["(8,)"]


def test_sizes_that_are_needed_as_numbers():
    text = "(float[b, 3, h, w] y) <float[4] scales = {1, 1, 2, 2}> { y = Resize (x, , scales) }"
    message = r"^node 'y' \(Resize, version 17\): it computes with a size as a number, .*: give it a number .*\[b, 3, h, 4\]"
    with pytest.raises(ModelError, match=message):
        exported(text, "b, 3, h, 4")
    assert exported(text, "b, 3, 5, 4").out_avals[0].shape[1:] == (3, 10, 8)
