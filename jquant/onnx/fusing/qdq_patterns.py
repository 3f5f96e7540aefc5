"""Operators that QDQ fusion can run on integers: ONNX's names, and the operators of jquant that replace them."""

from collections.abc import Mapping
from typing import NamedTuple

# DequantizeLinear of each operand, the operator and QuantizeLinear become one integer operator.
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

# A Sigmoid and the product of its operand and its result, SiLU or Swish, become one look-up.
TIMES_SIGMOID = "quantized_linear_times_sigmoid"

# Functions of one operand, which are looked up in a table of their results for all integers.
TABULATED = frozenset({"quantized_linear_leaky_relu", "quantized_linear_sigmoid", TIMES_SIGMOID})

# DequantizeLinear of both operands and the operator become one integer operator with a float result.
DEQUANTIZED: Mapping[str, str] = {
    "Conv": "convolution_integer_to_float",
    "Gemm": "matmul_integer_to_float",
    "MatMul": "matmul_integer_to_float",
}

# Clamps. Quantization is monotonic, so integers can be clamped instead of the numbers they represent.
CLAMPS = frozenset({"Clip", "Relu"})


class PassThrough(NamedTuple):
    """An operator whose results are elements of its operands, so that it can select integers instead of numbers.

    Attributes:
      operands: the positions of the operands that are passed through, which must share a scale and a zero point; None for
        all.
      since: the first version of the operator set in which the operator takes 8-bit integers.
      attributes: for some attributes, the values for which the operator passes elements through.
    """

    operands: tuple[int, ...] | None = (0,)
    since: int = 1
    attributes: Mapping[str, tuple[str, ...]] = {}


_TRANSFORMATIONS = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")

# Operators that move elements, or select some by their order.
PASSED_THROUGH: Mapping[str, PassThrough] = {
    "Concat": PassThrough(operands=None),
    "DepthToSpace": PassThrough(),
    "Expand": PassThrough(),
    "Flatten": PassThrough(),
    "Gather": PassThrough(),
    "GatherElements": PassThrough(),
    "GatherND": PassThrough(),
    "Identity": PassThrough(),
    "Max": PassThrough(operands=None, since=12),
    "MaxPool": PassThrough(since=12),
    "Min": PassThrough(operands=None, since=12),
    "Pad": PassThrough(since=11),  # if an integer represents the value that it pads with
    "ReduceMax": PassThrough(since=12),
    "ReduceMin": PassThrough(since=12),
    "Reshape": PassThrough(),
    "Resize": PassThrough(attributes={"mode": ("nearest",), "coordinate_transformation_mode": _TRANSFORMATIONS}),
    "ReverseSequence": PassThrough(),
    "Slice": PassThrough(),
    "SpaceToDepth": PassThrough(),
    "Split": PassThrough(),
    "Squeeze": PassThrough(),
    "Tile": PassThrough(),
    "Transpose": PassThrough(),
    "Unsqueeze": PassThrough(),
    "Where": PassThrough(operands=(1, 2)),
}
