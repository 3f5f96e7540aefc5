"""What fusion knows about the values of a graph: the integers behind them, and the arrays of the file."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jquant.onnx.fusing.quantization import Quantization
from jquant.onnx.graphs.graph import Node


@dataclasses.dataclass(frozen=True, eq=False)
class Integers:
    """The integers that a DequantizeLinear reads.

    Attributes:
      name: the value that holds them.
      quantization: the numbers that they represent.
      node: the DequantizeLinear.
    """

    name: str
    quantization: Quantization
    node: Node

    @property
    def operands(self) -> tuple[str, str, str]:
        """The names of the integers, of their scale and of their zero point."""
        return self.name, self.quantization.scale, self.quantization.zero_point


class Arrays:
    """The arrays of a graph, and those that fusion derives from them.

    Args:
      arrays: the arrays of the graph, by name.
      dtypes: the dtypes of its other values, by name, as far as they are known.

    Attributes:
      by_name: all of these arrays, by name.
      transposed: weights with their dimensions in another order.
      constants: integers that replace floats.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], dtypes: Mapping[str, np.dtype]):
        self.by_name = dict(arrays)
        self.transposed: dict[str, np.ndarray] = {}
        self.constants: dict[str, np.ndarray] = {}
        self._dtypes = dtypes

    def dtype(self, name: str) -> np.dtype | None:
        """The dtype of a value, whether or not it is an array of the graph; None if it is not known."""
        return self.by_name[name].dtype if name in self.by_name else self._dtypes.get(name)

    def add_constant(self, name: str, array: np.ndarray) -> str:
        self.constants[name] = self.by_name[name] = array
        return name

    def transpose(self, weights: Integers, order: Sequence[int] | None) -> Integers:
        """Weights of the file with their dimensions in another order, None for the reverse order."""
        array = self.by_name[weights.name]
        reverse = tuple(reversed(range(array.ndim)))
        order = reverse if order is None else tuple(order)
        name = f"{weights.name}/transposed" + ("" if order == reverse else f"{list(order)}")
        self.transposed[name] = self.by_name[name] = np.ascontiguousarray(array.transpose(order))
        axis = weights.quantization.axis
        if axis is not None:
            axis = order.index(axis % array.ndim)
        return dataclasses.replace(weights, name=name, quantization=dataclasses.replace(weights.quantization, axis=axis))
