"""onnxruntime as an oracle: graphs of a few nodes, with its optimisations off."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: oracle)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")


class Graph:
    """An ONNX graph, run by onnxruntime node by node: its default would fuse and rewrite."""

    def __init__(self, *nodes: tuple, opset: int = 21, **inputs: np.ndarray):
        helper, types = onnx.helper, {name: onnx.helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
        graph = helper.make_graph(
            [helper.make_node(op, ins, outs, **attributes) for op, ins, outs, attributes in nodes],
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
    """One node on `inputs`."""
    named = {f"input{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None}
    names = [f"input{i}" if x is not None else "" for i, x in enumerate(inputs)]
    return Graph((op, names, ["output"], attributes), opset=opset, **named)(**named)
