"""`jquant.onnx.load(overrides=...)`: the caller's functions instead of operators."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
import jquant.onnx  # noqa: E402
from jquant.onnx import ModelError  # noqa: E402

NETWORK = importlib.import_module("onnx.parser").parse_model("""<ir_version: 10, opset_import: ["" : 18]>
network (float[N, 4] x, int32[N, 4] n) => (float[M, 1] y, int32[N, 4] m)
  <float two = {2}, int64[1] last = {-1}, int64[2] shape = {-1, 4}> {
  m = Mul (n, n)
  square = Pow (x, two)
  reshaped = Reshape (square, shape)
  soft = Softmax <axis = -1> (reshaped)
  y = ReduceMean <keepdims = 1> (soft, last)
}""")
INPUTS = {"x": np.arange(8, dtype=np.float32).reshape(2, 4), "n": np.arange(8, dtype=np.int32).reshape(2, 4)}


def test_called_with_operands_and_attributes():
    received = {}

    def power(base, exponent):
        assert isinstance(exponent, np.ndarray)
        return base ** exponent.item() + 1

    def mean(data, axes, *, keepdims):
        received.update(axes=axes, keepdims=keepdims)
        return jnp.sum(data, tuple(axes), keepdims=bool(keepdims))

    def multiply(a, b):
        raise AssertionError("overrides are for floats, and this Mul is of integers")

    model = jquant.onnx.load(NETWORK, overrides={"Pow": power, "ReduceMean": mean, "Mul": multiply})
    outputs = jax.jit(model)(model.params, INPUTS)
    np.testing.assert_array_equal(received["axes"], [-1])
    assert received["keepdims"] == 1
    np.testing.assert_array_equal(outputs["m"], INPUTS["n"] ** 2)
    expected = jnp.sum(jax.nn.softmax(INPUTS["x"] ** 2 + 1, -1), -1, keepdims=True)
    np.testing.assert_array_equal(outputs["y"], expected)


def test_unknown_operator():
    with pytest.raises(ModelError, match=r"overrides has 'Matmul': there is no such operator, but there is 'MatMul'$"):
        jquant.onnx.load(NETWORK, overrides={"Matmul": jnp.matmul})
    with pytest.raises(ModelError, match=r"overrides has 'Product': there is no such operator$"):
        jquant.onnx.load(NETWORK, overrides={"Product": jnp.matmul})


def test_attribute_without_parameter():
    """An attribute with its default value needs no parameter; with another value, the function would be silently wrong."""
    jquant.onnx.load(NETWORK, overrides={"Softmax": jax.nn.softmax})
    other = onnx.ModelProto.FromString(NETWORK.SerializeToString())
    other.graph.node[3].attribute[0].i = 0
    with pytest.raises(ModelError, match=r"\(Softmax, version 18\): overrides\['Softmax'\] has no parameter for axis = 0"):
        jquant.onnx.load(other, overrides={"Softmax": lambda x: jax.nn.softmax(x)})


def test_error_inside_names_the_node():
    model = jquant.onnx.load(NETWORK, overrides={"Softmax": lambda x, y: x})
    with pytest.raises(ModelError, match=r"node 'soft' \(Softmax, version 18\): .*missing 1 required positional argument"):
        model(model.params, INPUTS)
