"""qdq="fused": every condition under which operators are not fused, and stay as they are written."""

import re

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from .qdq_models import (
    OUTPUT,
    RNG,
    SAME_SCALE,
    check_as_written,
    initializers,
    qdq,
    random_floats,
    scale,
)

pytestmark = pytest.mark.gate  # on the newest JAX alone

ADD = f"{qdq('x')}r = Add(xd, xd){OUTPUT}"
MATMUL = f"{qdq('x')}r = MatMul(xd, wd){OUTPUT}"
WEIGHTS = {"w": np.arange(-8, 8, dtype=np.int8).reshape(4, 4), "w_scale": np.float32(0.1), "w_zero": np.int8(3)}
FOUR_SCALES = RNG.uniform(0.1, 0.2, 4).astype(np.float32)
# What must not be fused: the nodes, initializers that replace others, what is fused nevertheless, and the operator set.
NOT_FUSED = {
    "another reader of the sum": (f"{ADD}\nv = Exp(r)", {}, {}, 21),
    "an output in between": (f"{ADD}\nv = Identity(r)", {}, {}, 21),
    "a float operand": (f"{qdq('x')}v = Exp(xd)\nr = Add(xd, x){OUTPUT}", {}, {}, 21),
    "16 bits": (ADD, {"x_zero": np.uint16(30000), "y_zero": np.uint16(7), "x_scale": np.float32(0.001)}, {}, 21),
    "16 bits in the output": (ADD, {"y_zero": np.int16(7)}, {}, 21),
    "a scale that is an input": (ADD.replace("x_scale", "u"), {}, {}, 21),
    "scales per channel": (
        ADD,
        {"x_scale": FOUR_SCALES, "x_zero": np.array([1, 2, 3, 4], np.uint8)},
        {},
        21,
    ),
    "output scales per channel": (ADD, {"y_scale": FOUR_SCALES, "y_zero": np.array([1, 2, 3, 4], np.uint8)}, {}, 21),
    "weights with scales along the reduced dimension": (
        f"wd = DequantizeLinear <axis = 0> (w, w_scale, w_zero)\n{MATMUL}",
        {"w_scale": FOUR_SCALES, "w_zero": np.zeros(4, np.int8)},
        {},
        21,
    ),
    "weights in blocks": (
        f"wd = DequantizeLinear <axis = 0, block_size = 2> (w, w_scale, w_zero)\n{MATMUL}",
        {"w_scale": np.stack([FOUR_SCALES, FOUR_SCALES]), "w_zero": np.zeros((2, 4), np.int8)},
        {"MatMul of integer weights": 1},
        21,
    ),
    "zero points that are computed": (
        f"n = Neg(w_zero)\nwd = DequantizeLinear(w, w_scale, n)\n{MATMUL}",
        {},
        {},
        21,
    ),
    "a factor of Gemm": (
        f"wd = DequantizeLinear(w, w_scale, w_zero)\n{qdq('x')}r = Gemm <alpha = 0.5> (xd, wd){OUTPUT}",
        {"x_scale": np.float32(2**-5), "w_scale": np.float32(2**-6)},  # exact sums, in any order
        {"Gemm of integer weights": 1},
        21,
    ),
    "another output dtype": (f"{qdq('x')}r = Sigmoid(xd){OUTPUT}", {"y_zero": np.int8(0)}, {}, 21),
    "softmax of all dimensions": (f"{qdq('x')}r = Softmax <axis = 0> (xd){OUTPUT}", {}, {}, 12),
    "negative scales": (
        f"{qdq('x')}r = ReduceMax(xd){SAME_SCALE}",
        {"x_scale": np.float32(-0.05)},
        {},
        13,
    ),
    "another output scale": (
        f"{qdq('x')}r = Transpose(xd){OUTPUT}",
        {},
        {"Transpose": 1},
        21,
    ),
    "another output zero point": (
        f"{qdq('x')}r = Transpose(xd)\ny = QuantizeLinear(r, x_scale, y_zero)",
        {},
        {"Transpose": 1},
        21,
    ),
    "operands with two scales": (
        f"{qdq('x')}q = QuantizeLinear(x, y_scale, y_zero)\nd = DequantizeLinear(q, y_scale, y_zero)\n"
        "r = Max(xd, d)" + OUTPUT,
        {},
        {},
        21,
    ),
    "padding that no integer represents": (
        f"{qdq('x')}r = Pad(xd, a, b){SAME_SCALE}",
        {"a": np.array([0, 1, 0, 0]), "b": np.float32(0.123)},
        {},
        21,
    ),
}


@pytest.mark.parametrize("reason", NOT_FUSED)
def test_not_fused(reason):
    nodes, replaced, fused, version = NOT_FUSED[reason]
    x = random_floats((4, 4))
    arrays = initializers({"x": "uint8", "y": "uint8"}) | WEIGHTS | replaced
    outputs = {"y": arrays["x_zero" if SAME_SCALE in nodes else "y_zero"].dtype}
    outputs |= {"v": np.float32} if "\nv = " in nodes else {}
    inputs = {"x": x} | ({"u": scale("x")} if "u)" in nodes or " u," in nodes else {})
    used = {name: array for name, array in arrays.items() if re.search(rf"\b{name}\b", nodes)}
    check_as_written(nodes, inputs, used, fused, outputs, version)


def test_pools_that_are_not_fused():
    """Pools with an incomplete last window, pools that return indices, and pools of one dimension."""
    x = random_floats((2, 3, 5, 6))
    arrays = initializers({"x": "uint8", "y": "uint8"})
    nodes = f"{qdq('x')}r = AveragePool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (xd){OUTPUT}"
    check_as_written(nodes, {"x": x}, arrays)
    nodes = f"{qdq('x')}r, i = MaxPool <kernel_shape = [2, 2]> (xd){OUTPUT}"
    check_as_written(nodes, {"x": x}, arrays, outputs={"y": np.uint8, "i": np.int64})
    nodes = f"{qdq('x')}r = AveragePool <kernel_shape = [2]> (xd){OUTPUT}"
    check_as_written(nodes, {"x": x[0]}, arrays)


def test_each_reader_is_fused_independently():
    """An integer operator and a float operator read the same DequantizeLinear."""
    x = random_floats((4, 6))
    nodes = f"{qdq('x')}r = Add(xd, xd){OUTPUT}\nv = Exp(xd)"
    arrays, outputs = initializers({"x": "uint8", "y": "uint8"}), {"y": np.uint8, "v": np.float32}
    check_as_written(nodes, {"x": x}, arrays, {"Add": 1}, outputs)
