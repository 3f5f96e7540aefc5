"""Models that came from files are exported again with their nodes as they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.saturation import need_exact_products

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from onnx import parser  # noqa: E402

import jquant  # noqa: E402
import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

from ..importer import small_models  # noqa: E402
from .round_trips import again, check_same, operators, outputs, same  # noqa: E402

SHAPES = ("Shape", "Slice", "Concat")  # of the encoder: what is known while tracing is in no node
X = np.random.default_rng(47).normal(size=(4, 32)).astype(np.float32)


def model_of(version: int, text: str):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {version}, "com.microsoft" : 1]>\n{text}')


def parts(proto) -> dict:
    """The initializers by name."""
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


@pytest.mark.parametrize("name", ["encoder", "qdq"])
def test_small_models(name):
    """The operators, the names, the initializers, packed ones among them, and the bits are those of the file."""
    proto, inputs = getattr(small_models, name)(), small_models.inputs() if name == "encoder" else {"x": X}
    exported = check_same(proto, inputs)
    assert operators(exported) == [each for each in operators(proto) if each not in SHAPES]
    assert [value.name for value in exported.graph.input] == [value.name for value in proto.graph.input]
    assert [value.name for value in exported.graph.output] == [value.name for value in proto.graph.output]
    assert {each.domain: each.version for each in exported.opset_import} == {"": 18 if name == "encoder" else 21}
    written, original = parts(exported), parts(proto)
    assert written.keys() >= (small_models.weights().keys() if name == "encoder" else original.keys())
    assert all(same(written[key], original[key]) for key in written.keys() & original.keys())
    nodes = zip(exported.graph.node, (node for node in proto.graph.node if node.op_type not in SHAPES), strict=True)
    assert all(list(new.attribute) == list(old.attribute) for new, old in nodes)
    assert same(
        *(outputs(each, inputs, optimized=True)["hidden" if name == "encoder" else "y"] for each in (exported, proto))
    )


def test_inputs_and_integers_have_the_types_of_the_file():
    """Also where JAX has 32 bits: no Cast is between them."""
    proto = model_of(
        13,
        """
    net (int64[n] ids, float[9, 3] table) => (float[m] y, int64[n] next, int32[n] narrow) {
      one = Constant <value_ints = [1]> ()
      next = Add (ids, one)
      y2 = Gather <axis = 0> (table, next)
      shape = Constant <value_ints = [-1]> ()
      y = Reshape (y2, shape)
      narrow = Cast <to = 6> (next)
    }""",
    )
    inputs = {"ids": np.array([2, 5, 7]), "table": np.arange(27, dtype=np.float32).reshape(9, 3)}
    exported = check_same(proto, inputs)
    assert operators(exported) == ["Add", "Gather", "Reshape", "Cast"]
    assert exported.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT64
    narrow = again(proto, {**inputs, "ids": jnp.asarray(inputs["ids"])})  # the file says int64, whatever the argument is
    assert narrow.graph.input == exported.graph.input


def test_a_function_that_calls_a_model():
    """What is around the model is plain JAX; tokens of int64 reach the file's nodes as they are."""
    proto, inputs = small_models.encoder(), small_models.inputs()
    model = jquant.onnx.load(proto)

    @jax.jit
    def function(params, tokens, noise):
        result = model(params, {"tokens": tokens, "noise": noise * 2})
        return {"hidden": result["hidden"] + 1, "likeliest": result["likeliest"]}

    exported = jquant.onnx.export(function, model.params, inputs["tokens"], inputs["noise"])
    onnx.checker.check_model(exported, full_check=True)
    assert [value.name for value in exported.graph.input] == ["tokens", "noise"]
    assert exported.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT64
    expected = outputs(proto, {**inputs, "noise": inputs["noise"] * 2})
    actual = outputs(exported, inputs)
    assert same(actual["hidden"], expected["hidden"] + np.float32(1))
    assert same(actual["likeliest"], expected["likeliest"].astype(np.int32))
    assert set(operators(exported)) == {*operators(proto), "Mul", "Add", "Cast"} - {*SHAPES}


def test_two_models_in_one():
    """Each with its own parameters, of which some have the same names, in the newer of two operator sets."""
    first = model_of(13, "net (float[4, 32] x) => (float[4, 32] y) <float[1] w = {3}> { y = Mul (x, w) }")
    second = small_models.qdq()
    models = [jquant.onnx.load(each) for each in (first, second)]

    def function(params, x):
        return models[1](params[1], {"x": models[0](params[0], {"x": x})["y"]})["y"]

    exported = jquant.onnx.export(function, [model.params for model in models], X)
    assert sorted(operators(exported)) == sorted(["Mul", *operators(second)])
    assert exported.opset_import[0].version == 21
    expected = outputs(second, {"x": outputs(first, {"x": X})["y"]})["y"]
    assert same(outputs(exported, {"x": X})["output"], expected)


def test_parameters_may_be_replaced():
    proto = small_models.qdq()
    model = jquant.onnx.load(proto)
    params = {**model.params, "bias": model.params["bias"] * 2}
    exported = jquant.onnx.export(model, params, {"x": X})
    np.testing.assert_array_equal(parts(exported)["bias"], parts(proto)["bias"] * 2)


def test_packed_parameters_become_the_tensors_of_the_file():
    """MatMulNBits with and without zero points, 4 and 8 bits, whose last block is not full; a transposed QGemm."""
    rng = np.random.default_rng(5)
    for bits, has_zero_points in [(4, False), (4, True), (8, False), (8, True)]:
        tensors = {
            "B": rng.integers(0, 256, (16, 3, 16 * bits // 8), np.uint8),
            "scales": rng.uniform(0.01, 0.02, (16, 3)).astype(np.float32),
        }
        if has_zero_points:
            tensors["zeros"] = rng.integers(0, 256, (16, -(-3 * bits // 8)), np.uint8)
        zeros = ", zeros" if has_zero_points else ""
        proto = model_of(
            17,
            f"""
        net (float[4, 48] x) => (float[4, 16] y) {{
          y = com.microsoft.MatMulNBits <K = 48, N = 16, bits = {bits}, block_size = 16> (x, B, scales{zeros})
        }}""",
        )
        proto.graph.initializer.extend(onnx.numpy_helper.from_array(each, name) for name, each in tensors.items())
        exported = check_same(proto, {"x": np.tile(X, 2)[:, :48]})
        written = parts(exported)
        assert operators(exported) == ["com.microsoft.MatMulNBits"]
        for name in tensors:
            last = slice(None) if name != "zeros" or bits == 8 else slice(0, 1)  # the half byte after the last means nothing
            np.testing.assert_array_equal(written[name][:, last], tensors[name][:, last])


def test_without_domains_com_microsoft_is_written_as_its_formula():
    proto = model_of(13, "net (float[4, 32] x) => (float[4, 32] y) { y = com.microsoft.QuickGelu <alpha = 1.5> (x) }")
    assert operators(check_same(proto, {"x": X})) == ["com.microsoft.QuickGelu"]
    formula = again(proto, {"x": X}, domains=())
    assert {node.domain for node in formula.graph.node} == {""}
    np.testing.assert_allclose(outputs(formula, {"x": X})["y"], outputs(proto, {"x": X})["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("version", "written"), [(8, 10), (12, 12), (13, 13), (17, 17)])
def test_operator_sets(version, written):
    """Nodes need the operator set of their file, or a newer one in which they mean the same."""
    axes = "<axes = [0]> (x)" if version < 13 else "(x, axes)"
    constant = "" if version < 13 else "axes = Constant <value_ints = [0]> ()"
    proto = model_of(version, f"net (float[4, 32] x) => (float[1, 4, 32] y) {{ {constant} y = Unsqueeze {axes} }}")
    exported = check_same(proto, {"x": X})
    assert exported.opset_import[0].version == written
    model = jquant.onnx.load(proto)
    if version < 13:
        with pytest.raises(ModelError, match=f"needs version {written} .* or an older one"):
            jquant.onnx.export(model, model.params, {"x": X}, opset=13)


def test_an_old_node_beside_a_new_one():
    proto = model_of(12, "net (float[4, 32] x) => (float[1, 4, 32] y) { y = Unsqueeze <axes = [0]> (x) }")
    model = jquant.onnx.load(proto)

    def function(params, x):
        return jax.nn.sigmoid(model(params, {"x": x})["y"]) * 2

    with pytest.raises(ModelError, match=r"Unsqueeze needs version 12 .*, or an older one"):
        jquant.onnx.export(function, model.params, X)


CONTROL = {
    "If": """
    net (int64 mode, float[2, 3] x) => (float[2, 3] y) <float[1, 3] a = {1, 2, 3}> {
      two = Constant <value_int = 2> ()
      is_two = Equal (mode, two)
      y = If (is_two) <
        then_branch = scaled () => (float[2, 3] t) { b = Constant <value_floats = [10.0, 20.0, 30.0]> () t = Mul (x, b) },
        else_branch = other () => (float[2, 3] e) { e = Add (x, a) }>
    }""",
    "Loop": """
    net (int64 mode, float[2, 3] x) => (float[2, 3] y) <float[1, 3] a = {1, 2, 3}, bool true = {1}> {
      y = Loop (mode, true, x) <
        body = body (int64 i, bool before, float[2, 3] v) => (bool after, float[2, 3] w) {
          after = Identity (before)
          s = Softmax (v)
          w = Add (s, a)
        }>
    }""",
    "Scan": """
    net (int64 mode, float[2, 3] x) => (float[3] last, float[2, 3] y) <float[3] a = {1, 2, 3}> {
      last, y = Scan <num_scan_inputs = 1, body = body (float[3] sum, float[3] row) => (float[3] next, float[3] out) {
        next = Add (sum, row)
        out = Exp (next)
      }> (a, x)
    }""",
    "nested": """
    net (int64 mode, float[2, 3] x) => (float[2, 3] y) <float[1, 3] a = {1, 2, 3}, int64 zero = {0}, bool true = {1}> {
      y = Loop (mode, true, x) <
        body = body (int64 i, bool before, float[2, 3] v) => (bool after, float[2, 3] w) {
          after = Identity (before)
          is_first = Equal (i, zero)
          w = If (is_first) <
            then_branch = first () => (float[2, 3] t) { t = Add (v, x) },
            else_branch = later () => (float[2, 3] e) { e = Mul (v, a) }>
        }>
    }""",
}


@pytest.mark.parametrize("name", CONTROL)
def test_bodies(name):
    """If, Loop and Scan stay what they are, with what their bodies read from around them."""
    proto = model_of(16, CONTROL[name])
    x = np.arange(6, dtype=np.float32).reshape(2, 3) / 7
    for mode in (2, 5):
        exported = check_same(proto, {"mode": np.int64(mode), "x": x})
    assert operators(exported) == [each for each in operators(proto) if each != "Constant"]


def test_a_condition_that_is_known_is_in_no_node():
    """The branch that is not taken does not fit this size."""
    proto = model_of(
        16,
        """
    net (float[n, 3] x) => (float[m] y) <int64 zero = {0}, int64 one = {1}, int64[1] axes = {0}, int64[1] flat = {-1}> {
      shape = Shape (x)
      rows = Gather (shape, zero)
      is_one = Equal (rows, one)
      y = If (is_one) <
        then_branch = squeezed () => (float[m] t) { t = Squeeze (x, axes) },
        else_branch = reshaped () => (float[k] e) { e = Reshape (x, flat) }>
    }""",
    )
    assert set(operators(check_same(proto, {"x": X[:1, :3]}))) == {"Squeeze"}
    assert set(operators(check_same(proto, {"x": X[:2, :3]}))) == {"Reshape"}


def test_a_body_with_lists_is_written_as_its_formula():
    proto = model_of(
        17,
        """
    net (float[2, 3] x) => (float[4, 3] y) {
      list = SequenceConstruct (x, x)
      y = ConcatFromSequence <axis = 0> (list)
    }""",
    )
    assert operators(check_same(proto, {"x": X[:2, :3]})) == ["Concat"]


def test_operators_that_load_replaces_by_their_bodies():
    """The operator is written, not its body."""
    proto = model_of(
        21,
        """
    net (float[2, 4, 3] x) => (float[2, 4, 3] y) <float[4] scale = {1, 2, 3, 4}, float[4] bias = {4, 3, 2, 1}> {
      y = GroupNormalization <num_groups = 2, epsilon = 0.01> (x, scale, bias)
    }""",
    )
    assert "GroupNormalization" not in str(jquant.onnx.load(proto))
    assert operators(check_same(proto, {"x": X[:2, :12].reshape(2, 4, 3)})) == ["GroupNormalization"]


def test_overrides_are_written_as_what_they_compute():
    proto = model_of(17, "net (float[4, 32] x) => (float[4, 32] y) { h = Exp (x) y = Tanh (h) }")
    model = jquant.onnx.load(proto, overrides={"Exp": lambda x: x * 2})
    exported = jquant.onnx.export(model, model.params, {"x": X})
    assert operators(exported) == ["Mul", "Tanh"]


def test_masks_are_written_as_what_they_compute():
    """The ranges of dynamic quantization are those of the positions that count."""
    proto = model_of(
        17,
        """
    net (float[4, 32] x) => (uint8[4, 32] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear (x) }""",
    )
    model = jquant.onnx.load(proto)

    def function(params, x, mask):
        return model(params, {"x": x}, where=mask)

    x, mask = X.copy(), np.array([True, True, False, True])
    x[2] = 1000
    exported = jquant.onnx.export(function, model.params, x, mask)
    assert operators(exported)[:2] == ["Reshape", "Where"]  # what does not count is 0, which every range includes
    results, expected = outputs(exported, {"x": x, "mask": mask}), model(model.params, {"x": x}, where=mask)
    for name in ("y", "s", "z"):
        np.testing.assert_array_equal(results[name], expected[name])


def test_open_sizes():
    """A symbolic size of the arguments becomes an open size of the inputs, and shapes are computed from it."""
    proto = model_of(
        17,
        """
    net (float[n, 6] x) => (float[m, 3, 2] y) {
      shape = Shape <start = 0, end = 1> (x)
      rest = Constant <value_ints = [3, 2]> ()
      sizes = Concat <axis = 0> (shape, rest)
      y = Reshape (x, sizes)
    }""",
    )
    model = jquant.onnx.load(proto)
    size = jax.export.symbolic_shape("rows")
    exported = jquant.onnx.export(model, model.params, {"x": jax.ShapeDtypeStruct((*size, 6), np.float32)})
    assert exported.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "rows"
    for rows in (1, 5):
        x = np.arange(rows * 6, dtype=np.float32).reshape(rows, 6)
        assert same(outputs(exported, {"x": x})["y"], x.reshape(rows, 3, 2))


def test_fused_models_are_written_as_their_formulas():
    need_exact_products(np.uint8, np.int8)
    proto = small_models.qdq()
    model = jquant.onnx.load(proto, qdq="fused")
    exported = jquant.onnx.export(model, model.params, {"x": X})
    onnx.checker.check_model(exported, full_check=True)
    np.testing.assert_array_equal(outputs(exported, {"x": X})["y"], model(model.params, {"x": X})["y"])


def test_the_same_before_and_after_the_model_has_run():
    proto = small_models.encoder()
    model, inputs = jquant.onnx.load(proto), small_models.inputs()
    before = jquant.onnx.export(jax.jit(model), model.params, inputs)
    jax.jit(model)(model.params, inputs)
    after = jquant.onnx.export(jax.jit(model), model.params, inputs)
    assert before.SerializeToString(deterministic=True) == after.SerializeToString(deterministic=True)
