"""Runs models in onnxruntime."""

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser

from jquant.errors import ModelError

Inputs = Mapping[str, np.ndarray]

SATURATION = "onnxruntime's products of uint8 by int8 saturate on this processor, x86 without VNNI; jquant's are exact"
_TWO_PRODUCTS = """<ir_version: 5, opset_import: ["": 10]>
two_products (uint8[1, 2] a, int8[2, 1] b) => (int32[1, 1] sum) { sum = MatMulInteger (a, b) }"""


def session(model: bytes, *, optimized: bool) -> Any:
    """An onnxruntime session on two CPU threads that do not spin.

    Raises:
      ImportError: onnxruntime is not installed.
      ModelError: onnxruntime does not accept the model.
    """
    runtime = _runtime()
    options = runtime.SessionOptions()
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has exception types of its own
        raise ModelError(f"onnxruntime: {error}") from error


def run(session: Any, inputs: Inputs, names: Sequence[str] | None = None) -> dict[str, Any]:
    """The outputs by name, or some of them. Inputs that the session does not have are left out.

    Raises:
      ModelError: onnxruntime cannot compute them.
    """
    feeds = {value.name: np.asarray(inputs[value.name]) for value in session.get_inputs() if value.name in inputs}
    names = [value.name for value in session.get_outputs()] if names is None else names
    try:
        return dict(zip(names, session.run(names, feeds), strict=True))
    except Exception as error:  # onnxruntime has exception types of its own
        raise ModelError(f"onnxruntime: {error}") from error


def intermediate(proto: onnx.ModelProto, inputs: Inputs) -> dict[str, Any]:
    """The values of the main graph, as onnxruntime computes them with optimizations off: all that NumPy has types for."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    declared = {value.name for value in model.graph.output}
    outputs = [name for node in model.graph.node for name in node.output if name and name not in declared]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    all_values = session(model.SerializeToString(), optimized=False)
    names = [each.name for each in all_values.get_outputs() if each.name in declared or each.type != "tensor(bfloat16)"]
    return run(all_values, inputs, names)


@functools.cache
def saturates() -> bool:
    """Whether onnxruntime adds two products of uint8 by int8 in 16 bits, as it does on x86 without VNNI."""
    inputs = {"a": np.full((1, 2), 255, np.uint8), "b": np.full((2, 1), 127, np.int8)}
    model = onnx.parser.parse_model(_TWO_PRODUCTS).SerializeToString()
    return run(session(model, optimized=False), inputs)["sum"].item() == np.iinfo(np.int16).max  # instead of 2 * 255 * 127


def _runtime() -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the comparison needs onnxruntime: pip install onnxruntime", name="onnxruntime") from error
