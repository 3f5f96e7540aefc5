"""The quantization of QuantizeLinear and DequantizeLinear nodes whose scales and zero points are in the file."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx

from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, MICROSOFT, Node

_INTEGERS = tuple(map(np.dtype, (np.int8, np.uint8, np.int32)))
# Within these bounds of a scale, 8-bit integers survive DequantizeLinear and QuantizeLinear.
_SMALLEST, _LARGEST = np.finfo(np.float32).tiny, np.finfo(np.float32).max / 255
_FLOATS = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.FLOAT)


@dataclasses.dataclass(frozen=True, eq=False)
class Quantization:
    """A dtype of integers, and the numbers they represent.

    Attributes:
      scale, zero_point: the names of the scale and the zero point; "" for a zero point of 0.
      scales, zero_points: their values.
      dtype: int8, uint8, or int32.
      axis: the axis along which they differ; None if there is one of each.
    """

    scale: str
    zero_point: str
    scales: np.ndarray
    zero_points: np.ndarray
    dtype: np.dtype
    axis: int | None

    @property
    def is_simple(self) -> bool:
        """Whether it has 8 bits and is per tensor."""
        return self.dtype.itemsize == 1 and self.axis is None

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest integer."""
        return int(np.iinfo(self.dtype).min), int(np.iinfo(self.dtype).max)

    def fits(self, array: np.ndarray | None) -> bool:
        """Whether there is a scale for each element of `array` along the axis. An array that is not known, None, fits."""
        if array is None or self.axis is None:
            return True
        return -array.ndim <= self.axis < array.ndim and array.shape[self.axis] == self.scales.size

    def equals(self, other: "Quantization") -> bool:
        """Whether both are simple, and the same integers represent the same numbers."""
        if not (self.is_simple and other.is_simple and self.dtype == other.dtype):
            return False
        return self.scales.item() == other.scales.item() and self.zero_points.item() == other.zero_points.item()

    def quantized(self, value: float) -> int:
        """The integer that QuantizeLinear gives for a number, which may be infinite. For a simple quantization."""
        with np.errstate(over="ignore"):
            quotient = np.rint(np.float32(value) / np.float32(self.scales.item()))
        return int(np.clip(quotient + self.zero_points.item(), *self.limits))

    def dequantized(self, integer: int) -> float:
        """The number that an integer represents. For a simple quantization."""
        return float(np.float32(integer - self.zero_points.item()) * np.float32(self.scales.item()))


def is_quantize(node: Node) -> bool:
    return node.operator == "QuantizeLinear" and node.domain in (DEFAULT_DOMAIN, MICROSOFT)


def is_dequantize(node: Node) -> bool:
    return node.operator == "DequantizeLinear" and node.domain in (DEFAULT_DOMAIN, MICROSOFT)


def from_node(node: Node, arrays: Mapping[str, np.ndarray], dtype: np.dtype | None) -> Quantization | None:
    """The quantization of a QuantizeLinear or DequantizeLinear; None if fusion cannot use it.

    It can if the scale and the zero point are in the file, if the integers have 8 or 32 bits, and if they are not quantized
    in blocks.

    Args:
      arrays: the arrays of the file, by name.
      dtype: the dtype of the integers that a DequantizeLinear reads, if known. It is needed if there is no zero point.
    """
    scale, zero_point = (*node.inputs, "")[1:3]
    attributes = node.attributes
    if scale not in arrays or (zero_point and zero_point not in arrays) or attributes.get("block_size", 0):
        return None
    scales = arrays[scale]
    if zero_point:
        dtype = arrays[zero_point].dtype
    elif is_quantize(node):
        dtype = _output_dtype(attributes.get("output_dtype", 0))
    elif attributes.get("output_dtype", 0) not in _FLOATS:
        return None
    if attributes.get("precision", 0) not in _FLOATS or dtype not in _INTEGERS or scales.dtype != np.float32:
        return None
    zero_points = arrays[zero_point] if zero_point else np.zeros(1, dtype)
    if zero_points.size not in (1, scales.size) or not np.all((scales >= _SMALLEST) & (scales <= _LARGEST)):
        return None
    if scales.size == 1:
        axis = None
    elif scales.ndim == 1:
        axis = int(attributes.get("axis", 1))
    else:
        return None
    return Quantization(
        scale=scale,
        zero_point=zero_point if np.any(zero_points) else "",
        scales=scales,
        zero_points=zero_points,
        dtype=np.dtype(dtype),
        axis=axis,
    )


def _output_dtype(number: int) -> np.dtype:
    return onnx.helper.tensor_dtype_to_np_dtype(number) if number else np.dtype(np.uint8)
