"""ONNX graphs of a few nodes, run by onnxruntime with its optimisations off."""

import itertools

import numpy as np
import pytest
from support.sampling import one_in

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: oracle)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

DTYPE_PAIRS = [*itertools.product((np.int8, np.uint8), repeat=2)]
# For int8 x uint8, onnxruntime has no kernel of operators that quantize their result.
pairs_with_kernel = one_in(2, ("a_dtype", "b_dtype"), [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)])


class Graph:
    """An ONNX graph, which onnxruntime runs node by node; with optimisations, it would fuse nodes and rewrite them."""

    def __init__(self, *nodes: tuple, opset: int = 21, **inputs: np.ndarray):
        helper = onnx.helper
        types = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
        graph = helper.make_graph(
            [helper.make_node(op, names, outputs, **attributes) for op, names, outputs, attributes in nodes],
            "graph",
            [helper.make_tensor_value_info(name, types[name], x.shape) for name, x in inputs.items()],
            [helper.make_empty_tensor_value_info(name) for name in nodes[-1][2]],
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=13)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def __call__(self, **inputs: np.ndarray) -> np.ndarray:
        return self.session.run(["output"], inputs)[0]


def run(op: str, *inputs: np.ndarray | None, opset: int = 21, **attributes) -> np.ndarray:
    """Runs a single node on inputs, None for those that are missing."""
    arrays = {f"input{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None}
    names = [f"input{i}" if x is not None else "" for i, x in enumerate(inputs)]
    return Graph((op, names, ["output"], attributes), opset=opset, **arrays)(**arrays)
