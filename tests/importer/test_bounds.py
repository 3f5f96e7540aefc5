"""Indices out of range, which raise if they are known before a program runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx.reference import ReferenceEvaluator  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

from .node_models import floats, int64, model_of, node_model, run_model  # noqa: E402

CASES = [  # operator, attributes, valid indices, an invalid index, and the axis that it indexes
    ("Gather", {}, int64(0, 2, -3), 3, 0),
    ("Gather", {"axis": -1}, int64(0, 3, -4), -5, 1),
    ("GatherElements", {"axis": 1}, np.array([[0, -4], [3, 1], [2, 2]]), 4, 1),
    ("GatherElements", {}, np.array([[0, -3, 1, 2], [2, 1, 0, 0]]), -4, 0),
    ("GatherND", {}, np.array([[0, 3], [-3, -4]]), -5, 1),
    ("GatherND", {"batch_dims": 1}, np.array([[3], [-4], [1]]), 4, 1),
]


@pytest.mark.parametrize("source", ["constant", "NumPy array", "JAX array"])
@pytest.mark.parametrize(("operator", "attributes", "indices", "invalid_index", "axis"), CASES)
def test_indices_out_of_range(operator, attributes, indices, invalid_index, axis, source):
    """Known indices raise, as in onnxruntime; traced ones are clipped."""
    data, invalid = floats(3, 4), indices.copy()
    invalid.flat[-1] = invalid_index
    convert = jnp.asarray if source == "JAX array" else np.asarray
    message = (
        rf"{operator}, version 13\): the index {invalid_index} is out of range: "
        rf"axis {axis} of the data has {data.shape[axis]} "
    )
    proto, inputs = node_model(operator, 13, [data, indices], **attributes)
    constants = (lambda x: {"x1": x}) if source == "constant" else lambda x: {}

    def call(x, function=lambda model: model):
        model = jquant.onnx.load(proto, constants=constants(x))
        arrays = inputs if source == "constant" else inputs | {"x1": convert(x.astype(np.int32))}
        return function(model)(model.params, {name: arrays[name] for name in model.inputs})["y0"]

    expected = ReferenceEvaluator(proto).run(None, inputs | {"x1": indices})[0]
    np.testing.assert_array_equal(call(indices), expected)
    functions = [lambda model: model, jax.jit] if source == "constant" else [lambda model: model]
    for function in functions:
        with pytest.raises(ModelError, match=message):
            call(invalid, function)
    if source != "constant":
        assert call(invalid, jax.jit).shape == expected.shape


@pytest.mark.parametrize(("index", "size"), [(0, 1), (-2, 1), (1, 5), (2, None), (-3, None)])
def test_indices_into_a_shape(index, size):
    """Shape arithmetic, which NumPy computes."""
    make = onnx.helper.make_node
    nodes = [make("Shape", ["x"], ["shape"]), make("Gather", ["shape", "index"], ["size"])]
    nodes.append(make("Expand", ["one", "size"], ["y"]))
    proto = model_of(nodes, {"x": floats(1, 5)}, ["y"], initializers={"index": int64(index), "one": floats(1)})
    if size is not None:
        assert run_model(proto, {"x": floats(1, 5)})["y"].shape == (size,)
        return
    with pytest.raises(ModelError, match=f"the index {index} is out of range: axis 0 of the data has 2 elements"):
        run_model(proto, {"x": floats(1, 5)})


@pytest.mark.parametrize("size", ["length", 4])
def test_constant_indices_into_a_named_size(size):
    """An index is checked only against a size that is known."""
    declared = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [size])
    make = onnx.helper.make_node
    nodes = [make("Constant", [], ["index"], value_int=4), make("Gather", ["x", "index"], ["y"])]
    model = jquant.onnx.load(model_of(nodes, {"x": declared}, ["y"]))
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape(str(size)), np.float32)
    program = jax.export.export(jax.jit(model))
    if size == 4:
        with pytest.raises(ModelError, match="the index 4 is out of range: axis 0 of the data has 4 elements"):
            program(model.params, {"x": shape})
        return
    assert program(model.params, {"x": shape}).call(model.params, {"x": np.float32(np.arange(5))})["y"] == 4


def test_gather_without_indices():
    proto, inputs = node_model("Gather", 13, [floats(3, 4), np.zeros((0, 2), np.int64)])
    assert jquant.onnx.load(proto)({}, inputs)["y0"].shape == (0, 2, 4)
