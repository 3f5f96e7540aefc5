"""onnxruntime's quantization of the dense network."""

import tempfile
from typing import Any

import numpy as np


def onnx_model(params: Any) -> Any:
    """The float MLP as an ONNX model."""
    from onnx import TensorProto, helper, numpy_helper

    layers = params["params"]
    arrays, nodes, x = {"shape": np.array([-1, 64])}, [helper.make_node("Reshape", ["images", "shape"], ["x"])], "x"
    for index, name in enumerate(sorted(layers)):
        arrays |= {f"w{index}": np.asarray(layers[name]["kernel"]), f"b{index}": np.asarray(layers[name]["bias"])}
        nodes.append(helper.make_node("Gemm", [x, f"w{index}", f"b{index}"], [f"y{index}"]))
        x = f"y{index}"
        if index + 1 < len(layers):
            nodes.append(helper.make_node("Relu", [x], [f"x{index}"]))
            x = f"x{index}"
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 8, 8, 1])
    logits = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", 10])
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "mlp", [images], [logits], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def onnxruntime_logits(params: Any, batches: list[np.ndarray], images: np.ndarray) -> dict[str, np.ndarray]:
    """The logits of the MLP that onnxruntime quantized itself, with the same calibration data, by method."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter(batches)

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"images": batch}

    logits = {}
    weights = {"per_channel": True, "weight_type": QuantType.QInt8}
    with tempfile.TemporaryDirectory() as folder:
        float_file, int8_file = f"{folder}/float.onnx", f"{folder}/int8.onnx"
        onnx.save(onnx_model(params), float_file)
        methods = {"min/max": CalibrationMethod.MinMax, "percentile": CalibrationMethod.Percentile}
        for name in ("dynamic", *methods):
            if name == "dynamic":
                quantize_dynamic(float_file, int8_file, **weights)
            else:
                static = {"calibrate_method": methods[name], "activation_type": QuantType.QUInt8, **weights}
                quantize_static(float_file, int8_file, Reader(), **static)
            session = onnxruntime.InferenceSession(int8_file, providers=["CPUExecutionProvider"])
            label = "dynamic" if name == "dynamic" else f"static, {name}"
            logits[f"onnxruntime, {label}"] = session.run(None, {"images": images})[0]
    return logits
