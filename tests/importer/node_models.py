"""Models of a few nodes, and random arrays as their inputs."""

import jax
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402

FLOAT = onnx.TensorProto.FLOAT
random = np.random.default_rng(18)


def floats(*shape):
    return random.normal(size=shape).astype(np.float32)


def integers(low, high, *shape, dtype=np.int64):
    return random.integers(low, high, shape).astype(dtype)


def int64(*values):
    return np.array(values, np.int64)


def model_of(nodes, inputs: dict, outputs, version=23, initializers=()):
    """A model whose `inputs` are arrays, which give their types and shapes, or declarations of inputs."""

    def declared(name, value):
        if not isinstance(value, np.ndarray | np.generic):
            return value
        return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)

    results = [onnx.helper.make_tensor_value_info(name, FLOAT, ["?"]) for name in outputs]
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in dict(initializers).items()]
    graph = onnx.helper.make_graph(nodes, "graph", [declared(*each) for each in inputs.items()], results, constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)], ir_version=8)


def node_model(operator, version, operands, static=(), outputs=1, **attributes):
    """A model of one node, and its inputs.

    Args:
      operands: None for one that is left out.
      static: the positions of operands that are initializers.
    """
    names = ["" if each is None else f"x{index}" for index, each in enumerate(operands)]
    inputs = {name: np.asarray(each) for name, each in zip(names, operands, strict=True) if name}
    constants = {f"x{index}": inputs.pop(f"x{index}") for index in static}
    results = [f"y{index}" for index in range(outputs)]
    node = onnx.helper.make_node(operator, names, results, **attributes)
    return model_of([node], inputs, results, version, constants), inputs


def run_model(proto, inputs):
    """The outputs of a model, by name, in one jitted call."""
    model = jquant.onnx.load(proto)
    return jax.tree.map(np.asarray, jax.jit(model)(model.params, inputs))
