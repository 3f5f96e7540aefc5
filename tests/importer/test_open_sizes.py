"""Named sizes: shape arithmetic while some sizes are open, and inputs that declare the same name."""

import re

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx import parser  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402


def exported(text: str, sizes: str) -> jax.export.Exported:
    """A model of images, exported for `sizes`, some of which are names."""
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
        "numbers = Gather (s, positions) m = ReduceMax <keepdims = 0> (numbers) limit = Cast <to = 7> (m)",
    ],
)
def test_fixed_sizes_beside_open_ones(nodes):
    """A range up to the height, which is fixed, while the batch size is open."""
    constants = """<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 ten = {10}, int64[1] twos = {2},
      int64[1] threes = {3}, int64[2] positions = {3, 2}>"""
    text = f"(float[k] y) {constants} {{ s = Shape (x) {nodes} r = Range (zero, limit, one) y = Cast <to = 1> (r) }}"
    assert [each.shape for each in exported(text, "batch, 3, 8, 4").out_avals] == [(8,)]


def test_a_name_that_cancels_out():
    """Of two named sizes, one cancels out of the arithmetic, and the other remains."""
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


def test_comparisons_that_jax_cannot_decide():
    """The error states the constraint that would decide."""
    text = """<ir_version: 8, opset_import: ["" : 17]> table (float[n, length] x) => (float[n, m] y)
      <float[4] table = {1, 2, 3, 4}, int64[1] zero = {0}> {
      shape = Shape <start = 1> (x) rows = Slice (table, zero, shape) y = Add (x, rows) }"""
    model = jquant.onnx.load(parser.parse_model(text))

    def export(constraints):
        sizes = jax.export.symbolic_shape("n, length", constraints=constraints)
        return jax.export.export(jax.jit(model))(model.params, {"x": jax.ShapeDtypeStruct(sizes, np.float32)})

    with pytest.raises(ModelError, match=r"JAX could not decide whether length <= 4: jax.export.symbolic_shape takes this"):
        export(())
    assert [str(each.shape) for each in export(["length <= 4"]).out_avals] == ["(n, length)"]


def joined_shape(first: str, second: str, tokens: str, mask: str):
    """The output shape of a model of two inputs, exported.

    Args:
      first, second: the names that the inputs declare for their lengths.
      tokens, mask: the shapes of the inputs.
    """
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
    """Sizes that may be equal are accepted."""
    assert ", ".join(map(str, joined_shape("s", "s", tokens, mask))) == result


@pytest.mark.parametrize(("tokens", "mask"), [("b, 6", "b, 5"), ("b, s + 1", "b, s"), ("b, s", "b, 6")])
def test_a_name_that_has_two_sizes(tokens, mask):
    """Sizes that cannot be equal are an error. Sizes with different names, or without a name, may differ."""
    first, second = (each.split(", ")[1] for each in (tokens, mask))
    with pytest.raises(
        ModelError,
        match=rf"^'length' must be one size, but is {re.escape(first)} in 'tokens', {re.escape(second)} in 'mask'$",
    ):
        joined_shape("length", "length", tokens, mask)
    for names in (("a", "c"), ("?", "?")):
        assert len(joined_shape(*names, tokens, mask)) == 2
