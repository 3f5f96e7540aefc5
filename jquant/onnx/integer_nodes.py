"""The integer nodes that replace an operator in fusion, if its operands allow it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jquant.onnx.graph import DEFAULT_DOMAIN, JQUANT, Node
from jquant.onnx.qdq_patterns import DEQUANTIZED, PASSED_THROUGH, QUANTIZED
from jquant.onnx.quantization import Quantization

_SAME_BIAS = 1e-6  # how far a bias' scale may differ from the product of the other two: a few roundings


@dataclasses.dataclass(frozen=True, eq=False)
class Integers:
    """The integers behind a value: their name, their quantization, and the DequantizeLinear that gave both."""

    name: str
    quantization: Quantization
    node: Node

    @property
    def operands(self) -> tuple[str, str, str]:
        return self.name, self.quantization.scale, self.quantization.zero_point


class Known:
    """The arrays of a graph, and those derived from them.

    Attributes:
      arrays: all of them, by name.
      transposed: weights with their dimensions in another order.
      constants: integers that replace floats.
    """

    def __init__(self, arrays: dict[str, np.ndarray], dtypes: Mapping[str, np.dtype]):
        self.arrays = dict(arrays)
        self._dtypes = dtypes
        self.transposed: dict[str, np.ndarray] = {}
        self.constants: dict[str, np.ndarray] = {}

    def dtype(self, name: str) -> np.dtype | None:
        return self.arrays[name].dtype if name in self.arrays else self._dtypes.get(name)

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants[name] = self.arrays[name] = array
        return name

    def transpose(self, given: Integers, order: Sequence[int] | None) -> Integers:
        """Weights of the file with their dimensions in another order, transposed only once."""
        array = self.arrays[given.name]
        order = tuple(reversed(range(array.ndim))) if order is None else tuple(order)
        name = f"{given.name}/transposed" + ("" if order == tuple(reversed(range(array.ndim))) else f"{list(order)}")
        self.transposed[name] = self.arrays[name] = np.ascontiguousarray(array.transpose(order))
        axis = given.quantization.axis
        if axis is not None:
            axis = order.index(axis % array.ndim)
        return dataclasses.replace(given, name=name, quantization=dataclasses.replace(given.quantization, axis=axis))


_Values = Mapping[str, Integers]


def passed_through(node: Node, values: _Values, known: Known) -> tuple[Integers, tuple[str, ...]] | None:
    """The integers that a node passes on, and the operands that it then has."""
    entry = PASSED_THROUGH[node.operator]
    if node.version < entry.since or (node.operator != "Split" and any(node.outputs[1:])):  # MaxPool's indices
        return None
    for name, allowed in entry.only.items():
        if node.attributes.get(name, allowed[0]) not in allowed:
            return None
    positions = range(len(node.inputs)) if entry.operands is None else entry.operands
    operands = [values.get(node.inputs[position]) for position in positions]
    first, *others = operands or [None]
    if first is None or not all(each is not None and first.quantization.equals(each.quantization) for each in others):
        return None
    inputs = list(node.inputs)
    for position, each in zip(positions, operands, strict=True):
        inputs[position] = each.name if each is not None else ""
    if node.operator == "Pad" and node.attributes.get("mode", "constant") == "constant":
        if not first.quantization.is_simple:
            return None
        value = inputs[2] if len(inputs) > 2 else ""
        if value and (value not in known.arrays or known.arrays[value].size != 1):
            return None
        number = float(known.arrays[value].item()) if value else 0.0
        integer = first.quantization.quantized(number)
        if first.quantization.dequantized(integer) != number:
            return None
        filling = known.constant(f"{node.outputs[0]}/value", np.array(integer, first.quantization.dtype))
        inputs = [*inputs[:2], filling, *inputs[3:]]
    return first, tuple(inputs)


def bounds(node: Node, known: Mapping[str, np.ndarray]) -> tuple[float, float] | None:
    """The bounds of a Relu or a Clip, if they are known."""
    if node.operator == "Relu":
        return 0.0, np.inf
    found = []
    for position, (name, without) in enumerate((("min", -np.inf), ("max", np.inf)), start=1):
        operand = node.inputs[position] if position < len(node.inputs) else ""
        if operand and (operand not in known or known[operand].size != 1):
            return None
        found.append(float(known[operand].item()) if operand else float(node.attributes.get(name, without)))
    low, high = found
    return (low, high) if low <= high else None


def quantized(node: Node, target: Quantization, output: str, values: _Values, known: Known) -> Node | None:
    """The node that computes the integers of a node's result, called `output`, or None if there is no such node."""
    if node.domain != DEFAULT_DOMAIN:
        return None
    build = _BUILDERS.get(node.operator, _unary)
    found = build(node, target, values, known)
    if found is None:
        return None
    inputs, attributes = found
    return Node(QUANTIZED[node.operator], JQUANT, 1, node.name, inputs, (output,), attributes)


_Found = tuple[tuple[str, ...], dict[str, Any]]  # operands and attributes


def _scales(target: Quantization) -> tuple[str, str]:
    return target.scale, target.zero_point


def _simple(name: str, values: _Values) -> Integers | None:
    found = values.get(name)
    return found if found is not None and found.quantization.is_simple else None


def _unary(node: Node, target: Quantization, values: _Values, known: Known) -> _Found | None:
    """An operator whose result has the dtype of its operand."""
    given = _simple(node.inputs[0], values)
    if given is None or given.quantization.dtype != target.dtype or (node.operator == "Softmax" and node.version < 13):
        return None
    return (*given.operands, *_scales(target)), dict(node.attributes)


def _average_pool(node: Node, target: Quantization, values: _Values, known: Known) -> _Found | None:
    given, attributes = _simple(node.inputs[0], values), dict(node.attributes)
    if given is None or attributes.pop("ceil_mode", 0) or len(attributes["kernel_shape"]) not in (2, 3):
        return None
    if attributes.get("auto_pad", "NOTSET").startswith("SAME") and {1} != {1, *attributes.get("dilations", ())}:
        return None  # such windows may lie behind the padding
    return (*given.operands, *_scales(target)), {**attributes, "output_dtype": target.dtype.name}


def _several(node: Node, target: Quantization, values: _Values, known: Known) -> _Found | None:
    """Add, Mul and Concat."""
    given = [_simple(name, values) for name in node.inputs]
    operands = tuple(name for each in given if each is not None for name in each.operands)
    if len(operands) != 3 * len(given):
        return None
    inputs = (*_scales(target), *operands) if node.operator == "Concat" else (*operands, *_scales(target))
    return inputs, {**node.attributes, "output_dtype": target.dtype.name}


@dataclasses.dataclass(frozen=True, eq=False)
class _Product:
    """Both operands of a product, and its attributes."""

    a: Integers
    b: Integers
    attributes: dict[str, Any]

    @property
    def operands(self) -> tuple[str, ...]:
        return *self.a.operands, *self.b.operands


def _product(node: Node, values: _Values, known: Known) -> _Product | None:
    """The operands of a MatMul, Gemm or Conv, if both are quantized, with scales that differ at most between columns."""
    a, b, attributes = _simple(node.inputs[0], values), values.get(node.inputs[1]), dict(node.attributes)
    if a is None or b is None or b.quantization.dtype.itemsize != 1:
        return None
    if node.operator == "Gemm":
        if attributes.pop("alpha", 1.0) != 1 or attributes.pop("beta", 1.0) != 1:
            return None
        if attributes.get("transB") and b.name in known.arrays:
            b = known.transpose(b, None)
            del attributes["transB"]
    weights = known.arrays.get(b.name)
    if weights is None:
        fits = b.quantization.axis is None and node.operator != "Conv"
    else:
        columns = 0 if node.operator == "Conv" else weights.ndim - 1
        axis, ranks = b.quantization.axis, range(3, 6) if node.operator == "Conv" else range(2, 9)
        fits = weights.ndim in ranks and (axis is None or axis % weights.ndim == columns)
    return _Product(a, b, attributes) if fits else None


def _quantized_product(node: Node, target: Quantization, values: _Values, known: Known) -> _Found | None:
    product = _product(node, values, known)
    if product is None:
        return None
    bias = (*node.inputs, "")[2] if node.operator != "MatMul" else ""
    extra: tuple[str, ...] = ()
    if bias:
        found = values.get(bias)
        if found is None or not _is_bias(found, product, known):
            return None
        extra = (found.name,)
    attributes = {**product.attributes, "output_dtype": target.dtype.name}
    return (*product.operands, *_scales(target), *extra), attributes


def _is_bias(bias: Integers, product: _Product, known: Known) -> bool:
    """Whether it is int32, in units of the product's sums."""
    given, array = bias.quantization, known.arrays.get(bias.name)
    if given.dtype != np.int32 or given.zero_point or array is None:
        return False
    scales = given.scales
    if given.axis is not None:
        sizes = [1] * array.ndim
        sizes[given.axis] = scales.size
        scales = scales.reshape(sizes)
    elif scales.size == 1:
        scales = scales.reshape(())
    unit = product.a.quantization.scales.reshape(-1) * product.b.quantization.scales.reshape(-1)
    try:
        return bool(np.all(np.abs(scales - unit) <= _SAME_BIAS * unit))
    except ValueError:  # they do not broadcast
        return False


def to_float(node: Node, values: _Values, known: Known) -> Node | None:
    """The node that computes an integer product with the same float result as the node."""
    product = _product(node, values, known) if node.operator in DEQUANTIZED else None
    if product is None:
        return None
    inputs = (*product.operands, *node.inputs[2:])
    return Node(DEQUANTIZED[node.operator], JQUANT, 1, node.name, inputs, node.outputs, product.attributes)


_BUILDERS = {
    "Add": _several,
    "AveragePool": _average_pool,
    "Concat": _several,
    "Conv": _quantized_product,
    "Gemm": _quantized_product,
    "MatMul": _quantized_product,
    "Mul": _several,
}
