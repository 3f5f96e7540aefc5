"""What follows from the arrays of a file alone is computed once, when it is loaded: all of it, and with the same bits."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.repeated import of_parameters
from support.sampling import one_in

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant.onnx  # noqa: E402

from . import test_node_cases as node_cases  # noqa: E402
from .test_parameter_shapes import CASES, model_of  # noqa: E402

# What calls compute of the size of a matrix, from parameters alone, and why.
_SPREAD = "the scales and zero points of blocks are read for each element in the loop that quantizes it"
_TENSOR = "a tensor of the file in the place of an activation is dequantized in the loop that reads it"
_OF_EACH_MATRIX = "zero points of each matrix of a batch are subtracted, because no product of 8 bits has them"
IN_EVERY_CALL = {
    "DequantizeLinear in blocks": _SPREAD,
    "MatMulInteger in batches": _OF_EACH_MATRIX,
    "MatMulNBits with g_idx": "rows in another order: the scale of each is looked up",
    "QLinearAdd": _TENSOR,
    "QLinearMatMul in batches": _OF_EACH_MATRIX,
    "QLinearMul": _TENSOR,
    "QLinearWhere": _TENSOR,
    "QuantizeLinear in blocks": _SPREAD,
}
# Operators of which every operand is in the file, and that calls compute all the same, besides those with wide integers.
_LARGE = "its results may be far larger than what is in the file"
_BODY = "its body may decide what it computes"
_NOTHING = "what it computes may be no array"
NOT_FOLDED = {
    "AffineGrid": _LARGE,
    "BlackmanWindow": _LARGE,
    "ConstantOfShape": _LARGE,
    "DynamicQuantizeLinear": "the mask of a call decides its range",
    "EyeLike": _LARGE,
    "HammingWindow": _LARGE,
    "HannWindow": _LARGE,
    "LinearAttention": _BODY,
    "Loop": _BODY,
    "MelWeightMatrix": _LARGE,
    "OptionalGetElement": _NOTHING,
    "OptionalHasElement": _NOTHING,
    "Range": _LARGE,
    "Scan": _BODY,
    "Tile": _LARGE,
    "ai.onnx.preview.FlexAttention": _BODY,
}


def is_matrix(x) -> bool:
    return sum(size > 1 for size in x.shape) > 1


@pytest.mark.parametrize("name", CASES)
def test_calls_read_their_weights_as_they_are(name):
    """No converter computes anything of the size of its weights from them alone, but for those of the list."""
    case = CASES[name]
    model = jquant.onnx.load(model_of(case, list(case.operands[1:])))
    equations = of_parameters(lambda params, x: model(params, {"x0": x}), model.params, case.operands[0])
    smallest = min((x.size for x in case.operands[1:] if x is not None and is_matrix(x)), default=np.inf)
    made = [output.aval for equation in equations for output in equation.outvars]
    found = [str(each) for each in made if is_matrix(each) and each.size >= smallest]
    assert bool(found) == (name in IN_EVERY_CALL), found


def with_known_operands(case, inputs: dict) -> onnx.ModelProto:
    """The model of a case, with initializers in the places of its inputs."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = max(model.ir_version, 4)  # since which initializers need not be inputs
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    del model.graph.input[:]
    for name, value in inputs.items():
        array = np.asarray(value)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        assert model.graph.initializer[-1].data_type == types[name], name
    return model


@one_in(15, "name", sorted({schema.name for schema in onnx.defs.get_all_schemas()}), others="full")
def test_nodes_of_known_operands(name):
    """No node is left whose operands are all in the file, but for those of the list, and the results have the same bits."""
    for case in node_cases.node_cases().values():
        if node_cases.operator(case).rpartition(".")[2] == name and is_of_known_arrays(case):
            check_known(case)


def is_of_known_arrays(case) -> bool:
    """Whether a case that passes has tensors alone, none of them of 64-bit floats."""
    types = [value.type for value in (*case.model.graph.input, *case.model.graph.output)]
    wide = (onnx.TensorProto.DOUBLE, onnx.TensorProto.COMPLEX128)
    are_tensors = all(type.HasField("tensor_type") and type.tensor_type.elem_type not in wide for type in types)
    passes = node_cases.left_out(case.name) is None and node_cases.operator(case) not in node_cases.NO_CONVERTER
    return are_tensors and passes


def has_wide_integers(value) -> bool:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return dtype.kind in "iu" and dtype.itemsize >= 4


def check_known(case) -> None:
    names = [value.name for value in case.model.graph.input]
    inputs = zip(names, map(node_cases.array, case.data_sets[0][0]), strict=True)
    proto = with_known_operands(case, {name: array for name, array in inputs if array is not None})
    model, as_written = jquant.onnx.load(proto), jquant.onnx.load(proto, fold=False)
    if not any(has_wide_integers(value) for value in case.model.graph.output):  # whose type in the file has to stay
        left = {node.qualified_operator for node in model._graph.walk()}
        assert not left or node_cases.operator(case) in NOT_FOLDED, (case.name, left)
    results, expected = model(model.params, {}), as_written(as_written.params, {})
    for key, array in expected.items():
        assert (results[key].dtype, results[key].shape) == (array.dtype, array.shape), (case.name, key)
        assert np.asarray(results[key]).tobytes() == np.asarray(array).tobytes(), (case.name, key)


WIDENED = """<ir_version: 10, opset_import: ["" : 21]>
widened (float[batch, 4] x) => (float[batch, 3] y)
  <int8[3, 4] w = {1, -2, 3, 4, -5, 6, 7, -8, 9, 10, -11, 12}, float[3, 1] scale = {0.3, 0.5, 0.7}> {
  floats = Cast <to = 1> (w)
  scaled = Mul (floats, scale)
  columns = Transpose <perm = [1, 0]> (scaled)
  y = MatMul (x, columns)
}"""
FIXED = WIDENED.replace("float[batch, 4] x", "float[batch, 4] x, float[3, 1] scale").replace(
    ", float[3, 1] scale = {0.3, 0.5, 0.7}", ""
)
X = {"x": np.float32(np.random.default_rng(0).normal(size=(5, 4)))}
INTEGERS = np.float32([[1, -2, 3, 4], [-5, 6, 7, -8], [9, 10, -11, 12]])
SCALE = np.float32([[0.3], [0.5], [0.7]])


def load(text: str, **options) -> jquant.onnx.Model:
    return jquant.onnx.load(onnx.parser.parse_model(text), **options)


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def test_parameters_are_the_results():
    """Named after the values that they replace; what only they were computed from is gone, and so is what the graph held."""
    model = load(WIDENED)
    assert model.params.keys() == {"columns"}
    np.testing.assert_array_equal(model.params["columns"], (INTEGERS * SCALE).T)
    assert "computed once: 1 Cast, 1 Mul, 1 Transpose; 48 bytes in place of 24" in str(model)
    assert "computed once" not in str(load(WIDENED, fold=False))
    assert not model._graph.arrays()


def test_settings_of_jax():
    """Infinities and NaN of a file are no errors while it is loaded; what is no boolean is one."""
    text = WIDENED.replace("y = MatMul (x, columns)", "log = Log (columns)\n  y = MatMul (x, log)")
    expected = load(text).params["log"]
    assert np.isnan(expected).any()
    with jax.debug_nans(True), jax.debug_infs(True), jax.disable_jit():
        np.testing.assert_array_equal(load(text).params["log"], expected)
    with pytest.raises(jquant.onnx.ModelError, match=r"^fold is 'no'; it must be True or False$"):
        load(WIDENED, fold="no")


def test_what_others_read_stays():
    """An initializer that the graph also reads elsewhere, or returns, is a parameter, too."""
    text = WIDENED.replace("(float[batch, 3] y)", "(float[batch, 3] y, float[batch, 3] z, float[3, 4] floats)")
    model = load(text.replace("y = MatMul", "row = Flatten <axis = 0> (scale)\n  z = Add (y, row)\n  y = MatMul"))
    assert model.params.keys() == {"columns", "row", "floats"}
    np.testing.assert_array_equal(model(model.params, X)["floats"], INTEGERS)


def test_values_of_fixed_inputs_alone_are_no_parameters():
    assert load(FIXED, constants={"scale": SCALE}).params.keys() == {"columns"}
    alone = load(FIXED.replace("Mul (floats, scale)", "Mul (scale, scale)"), constants={"scale": np.ones((3, 4))})
    assert not alone.params


def test_bodies_of_loops():
    """Weights that are widened inside of a loop, too, are widened once."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    repeated (float[2, 3] x) => (float[2, 3] y)
      <int8[3, 3] w = {1, 2, 0, 1, 0, 3, 1, 1, 1}, float scale = {0.25}, int64 count = {3}, bool go = {1}> {
      y = Loop (count, go, x) <body = step (int64 i, bool c, float[2, 3] a) => (bool d, float[2, 3] b) {
        d = Identity (c)
        wide = DequantizeLinear (w, scale)
        b = MatMul (a, wide)
      }>
    }"""
    model, as_written = load(text), load(text, fold=False)
    assert model.params.keys() == {"y/body/wide"}
    x = {"x": np.float32(np.random.default_rng(0).normal(size=(2, 3)))}
    np.testing.assert_array_equal(model(model.params, x)["y"], as_written(as_written.params, x)["y"])
    assert "DequantizeLinear" in operators(jquant.onnx.export(model, model.params, x))


def test_export_writes_the_nodes_of_the_file():
    """As long as a parameter is what the file computes; otherwise, its new value."""
    model = load(WIDENED)
    written = jquant.onnx.export(model, model.params, X)
    assert operators(written) == ["Cast", "Mul", "Transpose", "MatMul"]
    assert sorted(tensor.name for tensor in written.graph.initializer) == ["scale", "w"]
    doubled = {"columns": model.params["columns"] * 2}
    changed = jquant.onnx.export(model, doubled, X)
    assert operators(changed) == ["MatMul"]
    again = jquant.onnx.load(changed)
    np.testing.assert_array_equal(again(again.params, X)["y"], model(doubled, X)["y"])


def test_functions_that_replace_operators_get_what_the_file_has():
    seen = set()

    def multiply(a, b):
        seen.add((a.dtype.name, b.shape))
        return jnp.multiply(a, b)

    replaced, model = load(WIDENED, overrides={"Mul": multiply}), load(WIDENED)
    assert replaced.params.keys() == {"floats", "scale"}
    np.testing.assert_array_equal(jax.jit(replaced)(replaced.params, X)["y"], model(model.params, X)["y"])
    assert seen == {("float32", (3, 1))}


def test_contexts():
    """Derivatives, `vmap`, jax.export and pickling, with the parameters that were computed."""
    model, as_written = load(WIDENED), load(WIDENED, fold=False)
    by_x = [jax.jacobian(lambda x, each=each: each(each.params, {"x": x})["y"])(X["x"]) for each in (model, as_written)]
    np.testing.assert_array_equal(*by_x)
    by_weights = jax.grad(lambda params: model(params, X)["y"].sum())(model.params)["columns"]
    np.testing.assert_allclose(by_weights, np.repeat(X["x"].sum(0)[:, None], 3, 1), rtol=1e-5)
    expected = model(model.params, X)["y"]
    mapped = jax.vmap(lambda x: model(model.params, {"x": x[None]})["y"][0])(X["x"])
    np.testing.assert_allclose(mapped, expected, rtol=1e-6)
    restored = jax.export.deserialize(jax.export.export(jax.jit(model))(model.params, X).serialize())
    np.testing.assert_array_equal(restored.call(model.params, X)["y"], expected)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again(again.params, X)["y"], expected)
