"""Models of several quantized nodes, of ONNX and of com.microsoft."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402

MICROSOFT = ("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm")  # operators of com.microsoft


def load_model(nodes, inputs, output, initializers) -> jquant.onnx.Model:
    """A loaded model.

    Args:
      nodes: (operator, inputs, outputs, attributes) of each.
      inputs: (name, dtype, shape) of each.
      output: (name, dtype, shape).
      initializers: arrays by name.
    """
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node(operator, names, results, domain="com.microsoft" if operator in MICROSOFT else "", **attributes)
            for operator, names, results, attributes in nodes
        ],
        "graph",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, dtype, shape in inputs
        ],
        [helper.make_tensor_value_info(output[0], helper.np_dtype_to_tensor_dtype(np.dtype(output[1])), output[2])],
        [onnx.numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return jquant.onnx.load(helper.make_model(graph, opset_imports=imports, ir_version=10))


def integers(rng, *sizes: int, dtype=np.int8) -> np.ndarray:
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, sizes, dtype, endpoint=True)
