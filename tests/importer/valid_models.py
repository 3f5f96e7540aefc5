"""Valid models: the ones that are mutated into malformed models, and those of other tests."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser


def declared(name: str, dtype: int, shape: list) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name: str, array: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(array, name)


def quantized_convolutions() -> onnx.ModelProto:
    """QDQ, as quantizers write it: QuantizeLinear and DequantizeLinear around a convolution, a pool and a matrix product."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("Conv", ["xd", "wd", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["pq"]),
        helper.make_node("DequantizeLinear", ["pq", "s", "z"], ["pd"]),
        helper.make_node("Reshape", ["pd", "flat"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    initializers = [
        constant("s", np.float32(0.05)),
        constant("z", np.uint8(128)),
        constant("w", rng.integers(-9, 9, (4, 3, 3, 3)).astype(np.int8)),
        constant("ws", rng.uniform(0.01, 0.02, 4).astype(np.float32)),
        constant("wz", np.zeros(4, np.int8)),
        constant("b", rng.normal(size=4).astype(np.float32)),
        constant("flat", np.array([0, -1], np.int64)),
        constant("m", rng.normal(size=(32, 5)).astype(np.float32)),
    ]
    inputs, outputs = [declared("x", 1, ["n", 3, 8, 8])], [declared("y", 1, ["n", 5])]
    return checked(helper.make_graph(nodes, "convolutions", inputs, outputs, initializers))


def integer_products() -> onnx.ModelProto:
    """Dynamic quantization, surrounded by shape arithmetic."""
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Unsqueeze", ["batch", "axes"], ["batches"]),
        helper.make_node("Concat", ["batches", "rest"], ["wanted"], axis=0),
        helper.make_node("Expand", ["one", "wanted"], ["ones"]),
        helper.make_node("Add", ["x", "ones"], ["more"]),
        helper.make_node("DynamicQuantizeLinear", ["more"], ["q", "qs", "qz"]),
        helper.make_node("MatMulInteger", ["q", "w", "qz", "wz"], ["product"]),
        helper.make_node("Cast", ["product"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "qs"], ["scaled"]),
        helper.make_node("Slice", ["scaled", "starts", "ends"], ["y"]),
    ]
    initializers = [
        constant("zero", np.int64(0)),
        constant("axes", np.array([0])),
        constant("rest", np.array([6])),
        constant("one", np.ones((1, 1), np.float32)),
        constant("w", rng.integers(0, 255, (6, 7)).astype(np.uint8)),
        constant("wz", np.uint8(120)),
        constant("starts", np.array([0, 1])),
        constant("ends", np.array([9, 6])),
    ]
    inputs, outputs = [declared("x", 1, ["n", 6])], [declared("y", 1, ["n", 5])]
    return checked(helper.make_graph(nodes, "products", inputs, outputs, initializers))


def control_flow() -> onnx.ModelProto:
    """If and Loop."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 16]>
net (bool c, float[3] x) => (float[3] y, float[r, 3] each)
    <int64 rounds = {4}, float[3] a = {1.0, 2.0, 3.0}, int64[1] times = {1}> {
  s = If (c) <
    then_branch = one () => (float[3] t) { t = Mul (x, a) },
    else_branch = two () => (float[3] e) { u = Sub (x, a) e = Tile (u, times) }>
  y, each = Loop (rounds, , s) <body = one (int64 i, bool g, float[3] v) => (bool d, float[3] w, float[3] o) {
    d = Identity (g)
    f = Cast <to = 1> (i)
    w = Add (v, f)
    o = Mul (w, a)
  }>
}""")
    onnx.checker.check_model(model)
    return model


def external_data(folder: Path) -> onnx.ModelProto:
    """`integer_products` with one initializer in the file ``weights``."""
    model = integer_products()
    weights = next(each for each in model.graph.initializer if each.name == "w")
    (folder / "weights").write_bytes(weights.raw_data)
    onnx.external_data_helper.set_external_data(weights, "weights", 0, len(weights.raw_data))
    weights.ClearField("raw_data")
    return model


def checked(graph: onnx.GraphProto) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model
