"""Models of one node, in onnxruntime without its optimisations and in jquant."""

import re
from collections.abc import Sequence

import jax
import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

import jquant.onnx  # noqa: E402

NARROW = {
    np.dtype(getattr(ml_dtypes, name)): getattr(onnx.TensorProto, name.upper())
    for name in ("int4", "uint4", "int2", "uint2")
}


class Node:
    """A model of one operator.

    Args:
      operands: arrays, which give the shapes and types; None for one that is left out.
      constant: the positions of operands that are initializers, with these values; the others are traced inputs.
    """

    def __init__(
        self,
        operator: str,
        *operands: np.ndarray | None,
        outputs: int = 1,
        constant: Sequence[int] = (),
        opset: int = 21,
        microsoft: bool = False,
        **attributes,
    ):
        if "kernel_opset" in attributes:  # QLinearSoftmax has an attribute of the name `opset`
            attributes["opset"] = attributes.pop("kernel_opset")
        helper, arrays = onnx.helper, {index: np.asarray(x) for index, x in enumerate(operands) if x is not None}
        names = [f"x{index}" if index in arrays else "" for index in range(len(operands))]
        self.names = [names[index] for index in arrays if index not in constant]
        results = [f"y{index}" for index in range(outputs)]
        domain = "com.microsoft" if microsoft else ""
        graph = helper.make_graph(
            [helper.make_node(operator, names, results, domain=domain, **attributes)],
            "graph",
            [helper.make_tensor_value_info(f"x{i}", onnx_type(x), x.shape) for i, x in arrays.items() if i not in constant],
            [helper.make_empty_tensor_value_info(name) for name in results],
            [onnx.numpy_helper.from_array(x, f"x{i}") for i, x in arrays.items() if i in constant],
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        self.proto = helper.make_model(graph, opset_imports=opsets, ir_version=13 if opset > 24 else 10)
        self.constant = frozenset(constant)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(self.proto.SerializeToString(), options, providers=providers)
        for declared, output in zip(self.proto.graph.output, self.session.get_outputs(), strict=True):
            element_type = getattr(onnx.TensorProto, re.fullmatch(r"tensor\((\w+)\)", output.type)[1].upper())
            declared.CopyFrom(helper.make_tensor_value_info(output.name, element_type, output.shape))

    def theirs(self, *operands: np.ndarray | None) -> list[np.ndarray]:
        return self.session.run(None, self._named(operands))

    def ours(self, *operands: np.ndarray | None) -> list[np.ndarray]:
        if not hasattr(self, "model"):
            self.model = jquant.onnx.load(self.proto)
            self.program = jax.jit(self.model)
        return [np.asarray(each) for each in self.program(self.model.params, self._named(operands)).values()]

    def assert_equal(self, *operands: np.ndarray | None) -> int:
        """Compares types, shapes and elements with onnxruntime's, and returns the number of elements."""
        return assert_equal(self.ours(*operands), self.theirs(*operands), operands)

    def _named(self, operands: Sequence[np.ndarray | None]) -> dict[str, np.ndarray]:
        inputs = (np.asarray(x) for i, x in enumerate(operands) if x is not None and i not in self.constant)
        return dict(zip(self.names, inputs, strict=True))


def onnx_type(x: np.ndarray) -> int:
    return NARROW.get(x.dtype) or onnx.helper.np_dtype_to_tensor_dtype(x.dtype)


def assert_equal(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], operands: object = None) -> int:
    count = 0
    for actual, expected in zip(ours, theirs, strict=True):
        assert actual.dtype == expected.dtype
        if not np.array_equal(actual, expected, equal_nan=expected.dtype.kind == "f"):
            np.testing.assert_array_equal(actual, expected, str(operands))
        count += expected.size
    return count


def check(operator: str, *operands: np.ndarray | None, **options) -> int:
    """Compares a node with all operands traced, and with all but the first constant. Returns the number of elements."""
    count = Node(operator, *operands, **options).assert_equal(*operands)
    constant = [index for index in range(1, len(operands)) if operands[index] is not None]
    return count + Node(operator, *operands, constant=constant, **options).assert_equal(*operands)
