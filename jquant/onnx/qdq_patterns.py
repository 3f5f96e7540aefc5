"""Which operators of a quantized network integers take the place of floats in: a table, and nothing that computes.

The names on the left are ONNX's, for they are the ones that everybody has; those on the right are jquant's operators.
"""

from collections.abc import Mapping
from typing import NamedTuple

# DequantizeLinear of each operand, the operator, QuantizeLinear: one integer operator.
QUANTIZED: Mapping[str, str] = {
    "Add": "quantized_linear_add",
    "AveragePool": "quantized_linear_average_pool",
    "Concat": "quantized_linear_concat",
    "Conv": "quantized_linear_convolution",
    "Gemm": "quantized_gemm",
    "GlobalAveragePool": "quantized_linear_global_average_pool",
    "LeakyRelu": "quantized_linear_leaky_relu",
    "MatMul": "quantized_linear_matmul",
    "Mul": "quantized_linear_multiply",
    "Sigmoid": "quantized_linear_sigmoid",
    "Softmax": "quantized_linear_softmax",
}

# DequantizeLinear of both operands, the operator: an integer operator whose result is of floats.
DEQUANTIZED: Mapping[str, str] = {
    "Conv": "convolution_integer_to_float",
    "Gemm": "matmul_integer_to_float",
    "MatMul": "matmul_integer_to_float",
}

# Clamps of values, which are clamps of the integers, for quantization keeps the order.
CLAMPS = frozenset({"Clip", "Relu"})


class PassThrough(NamedTuple):
    """An operator whose results are elements of its operands: it does the same with the integers that stand for them.

    Attributes:
      operands: the positions of the operands that are passed on, which have to have one scale and one zero point; None: all.
      since: the operator set from which on it takes integers of 8 bits.
      only: the values that attributes have to have, if given.
    """

    operands: tuple[int, ...] | None = (0,)
    since: int = 1
    only: Mapping[str, tuple[str, ...]] = {}


_TRANSFORMATIONS = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")

# What moves elements, or chooses among them by their order.
PASSED_THROUGH: Mapping[str, PassThrough] = {
    "Concat": PassThrough(None),
    "DepthToSpace": PassThrough(),
    "Expand": PassThrough(),
    "Flatten": PassThrough(),
    "Gather": PassThrough(),
    "GatherElements": PassThrough(),
    "GatherND": PassThrough(),
    "Identity": PassThrough(),
    "Max": PassThrough(None, since=12),
    "MaxPool": PassThrough(since=12),
    "Min": PassThrough(None, since=12),
    "Pad": PassThrough(since=11),  # with zeros, or another value that an integer stands for
    "ReduceMax": PassThrough(since=12),
    "ReduceMin": PassThrough(since=12),
    "Reshape": PassThrough(),
    "Resize": PassThrough(only={"mode": ("nearest",), "coordinate_transformation_mode": _TRANSFORMATIONS}),
    "ReverseSequence": PassThrough(),
    "Slice": PassThrough(),
    "SpaceToDepth": PassThrough(),
    "Split": PassThrough(),
    "Squeeze": PassThrough(),
    "Tile": PassThrough(),
    "Transpose": PassThrough(),
    "Unsqueeze": PassThrough(),
    "Where": PassThrough((1, 2)),
}
