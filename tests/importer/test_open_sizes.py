"""Sizes with names: shape arithmetic while some are left open, and inputs that declare the same name."""

import re

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
    message = r"^node 'y' \(Resize, version 17\): it uses a size as a number, .*: fix it .*\[b, 3, h, 4\]"
    with pytest.raises(ModelError, match=message):
        exported(text, "b, 3, h, 4")
    assert exported(text, "b, 3, 5, 4").out_avals[0].shape[1:] == (3, 10, 8)


def lengths(first: str, second: str, tokens: str, mask: str):
    """Exports a model of two inputs, whose lengths are declared as `first` and `second`, with the shapes of the others."""
    inputs = f"float[n, {first}] tokens, float[n, {second}] mask"
    text = f"joined ({inputs}) => (float[n, k] y) {{ y = Concat <axis = 1> (tokens, mask) }}"
    model = jquant.onnx.load(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'))
    scope = jax.export.SymbolicScope(["s <= 5"] if "s" in tokens else [])
    sizes = {"tokens": tokens, "mask": mask}
    shapes = {name: jax.export.symbolic_shape(each, scope=scope) for name, each in sizes.items()}
    abstract = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
    return jax.export.export(jax.jit(model))({}, abstract).out_avals[0].shape


@pytest.mark.parametrize(
    ("tokens", "mask", "result"),
    [
        ("b, 6", "b, 6", "b, 12"),
        ("b, s", "b, s", "b, 2*s"),
        ("b, s", "b, t", "b, t + s"),
        ("b, s", "b, 4", "b, s + 4"),
        ("b, 6", "b, 1", "b, 7"),
    ],
)
def test_a_name_that_two_inputs_declare(tokens, mask, result):
    """What may be equal is allowed."""
    assert ", ".join(map(str, lengths("s", "s", tokens, mask))) == result


@pytest.mark.parametrize(("tokens", "mask"), [("b, 6", "b, 5"), ("b, s + 1", "b, s"), ("b, s", "b, 6")])
def test_a_name_that_has_two_sizes(tokens, mask):
    """What cannot be equal is an error; but sizes of two names, or of none, may differ."""
    first, second = (each.split(", ")[1] for each in (tokens, mask))
    with pytest.raises(
        ModelError,
        match=rf"^'length' must be one size, but is {re.escape(first)} in 'tokens', {re.escape(second)} in 'mask'$",
    ):
        lengths("length", "length", tokens, mask)
    for names in (("a", "c"), ("?", "?")):
        assert len(lengths(*names, tokens, mask)) == 2
