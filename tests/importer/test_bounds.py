"""Indices of look-ups that are out of range: those that are known raise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx.reference import ReferenceEvaluator  # noqa: E402

import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

from .node_models import computed, floats, int64, model_of, node_model  # noqa: E402

LOOK_UPS = [  # operator, attributes, indices that are right, one of them that is wrong, its axis
    ("Gather", {}, int64(0, 2, -3), 3, 0),
    ("Gather", {"axis": -1}, int64(0, 3, -4), -5, 1),
    ("GatherElements", {"axis": 1}, np.array([[0, -4], [3, 1], [2, 2]]), 4, 1),
    ("GatherElements", {}, np.array([[0, -3, 1, 2], [2, 1, 0, 0]]), -4, 0),
    ("GatherND", {}, np.array([[0, 3], [-3, -4]]), -5, 1),
    ("GatherND", {"batch_dims": 1}, np.array([[3], [-4], [1]]), 4, 1),
]


@pytest.mark.parametrize("given", ["constant", "eager", "eager array of JAX"])
@pytest.mark.parametrize(("operator", "attributes", "indices", "wrong", "axis"), LOOK_UPS)
def test_indices_out_of_range(operator, attributes, indices, wrong, axis, given):
    """Known ones raise, as in onnxruntime; of traced ones, the nearest is taken."""
    data, broken = floats(3, 4), indices.copy()
    broken.flat[-1] = wrong
    convert = jnp.asarray if given == "eager array of JAX" else np.asarray
    message = (
        rf"{operator}, version 13\): the index {wrong} is out of range: axis {axis} of the data has {data.shape[axis]} "
    )
    proto, inputs = node_model(operator, 13, [data, indices], **attributes)
    constants = (lambda x: {"x1": x}) if given == "constant" else lambda x: {}

    def call(x, function=lambda model: model):
        model = jquant.onnx.load(proto, constants=constants(x))
        rest = inputs if given == "constant" else inputs | {"x1": convert(x.astype(np.int32))}
        return function(model)(model.params, {name: rest[name] for name in model.inputs})["y0"]

    expected = ReferenceEvaluator(proto).run(None, inputs | {"x1": indices})[0]
    np.testing.assert_array_equal(call(indices), expected)
    functions = [lambda model: model, jax.jit] if given == "constant" else [lambda model: model]
    for function in functions:
        with pytest.raises(ModelError, match=message):
            call(broken, function)
    if given != "constant":
        assert call(broken, jax.jit).shape == expected.shape


@pytest.mark.parametrize(("place", "size"), [(0, 1), (-2, 1), (1, 5), (2, None), (-3, None)])
def test_indices_into_a_shape(place, size):
    """NumPy looks up what shapes depend on."""
    make = onnx.helper.make_node
    nodes = [make("Shape", ["x"], ["shape"]), make("Gather", ["shape", "place"], ["size"])]
    nodes.append(make("Expand", ["one", "size"], ["y"]))
    proto = model_of(nodes, {"x": floats(1, 5)}, ["y"], initializers={"place": int64(place), "one": floats(1)})
    if size is not None:
        assert computed(proto, {"x": floats(1, 5)})["y"].shape == (size,)
        return
    with pytest.raises(ModelError, match=f"the index {place} is out of range: axis 0 of the data has 2 elements"):
        computed(proto, {"x": floats(1, 5)})


@pytest.mark.parametrize("size", ["length", 4])
def test_constant_indices_into_a_size_with_a_name(size):
    """Whether it has as many elements is not known."""
    declared = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [size])
    make = onnx.helper.make_node
    nodes = [make("Constant", [], ["place"], value_int=4), make("Gather", ["x", "place"], ["y"])]
    model = jquant.onnx.load(model_of(nodes, {"x": declared}, ["y"]))
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape(str(size)), np.float32)
    program = jax.export.export(jax.jit(model))
    if size == 4:
        with pytest.raises(ModelError, match="the index 4 is out of range: axis 0 of the data has 4 elements"):
            program(model.params, {"x": shape})
        return
    assert program(model.params, {"x": shape}).call(model.params, {"x": np.float32(np.arange(5))})["y"] == 4


def test_an_empty_look_up():
    proto, inputs = node_model("Gather", 13, [floats(3, 4), np.zeros((0, 2), np.int64)])
    assert jquant.onnx.load(proto)({}, inputs)["y0"].shape == (0, 2, 4)
