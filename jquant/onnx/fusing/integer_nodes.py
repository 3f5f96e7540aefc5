"""Builds the integer nodes that replace the nodes of a QDQ pattern in fusion."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jquant.onnx.fusing.fusion_values import Arrays, Integers
from jquant.onnx.fusing.qdq_patterns import DEQUANTIZED, PASSED_THROUGH, QUANTIZED, TABULATED, TIMES_SIGMOID
from jquant.onnx.fusing.quantization import Quantization
from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, JQUANT, Node
from jquant.onnx.running import registry

_BIAS_TOLERANCE = 1e-6  # relative difference of a bias' scale from the product of the operands': a few roundings


_Values = Mapping[str, Integers]  # by the names of the floats
_Inputs = tuple[str, ...]
_Attributes = dict[str, Any]


def passed_through(node: Node, values: _Values, arrays: Arrays) -> tuple[Integers, _Inputs] | None:
    """The integers that a node passes through, and its inputs when it does; None if it cannot take integers."""
    entry = PASSED_THROUGH[node.operator]
    if node.version < entry.since or (node.operator != "Split" and any(node.outputs[1:])):  # MaxPool's indices
        return None
    for name, allowed in entry.attributes.items():
        if node.attributes.get(name, allowed[0]) not in allowed:
            return None
    positions = range(len(node.inputs)) if entry.operands is None else entry.operands
    operands = [values.get(node.inputs[position]) for position in positions]
    first, *others = operands or [None]
    if first is None or not all(other and first.quantization.equals(other.quantization) for other in others):
        return None
    inputs = list(node.inputs)
    for position, operand in zip(positions, operands, strict=True):
        inputs[position] = operand.name if operand is not None else ""
    if node.operator == "Pad" and node.attributes.get("mode", "constant") == "constant":
        if not first.quantization.is_simple:
            return None
        value = inputs[2] if len(inputs) > 2 else ""
        if value and (value not in arrays.by_name or arrays.by_name[value].size != 1):
            return None
        number = float(arrays.by_name[value].item()) if value else 0.0
        integer = first.quantization.quantized(number)
        if first.quantization.dequantized(integer) != number:
            return None
        padding = arrays.add_constant(f"{node.outputs[0]}/value", np.array(integer, first.quantization.dtype))
        inputs = [*inputs[:2], padding, *inputs[3:]]
    return first, tuple(inputs)


def bounds(node: Node, arrays: Mapping[str, np.ndarray]) -> tuple[float, float] | None:
    """The lower and the upper bound of a Relu or a Clip, if they are known."""
    if node.operator == "Relu":
        return 0.0, np.inf
    limits = []
    for position, (name, default) in enumerate((("min", -np.inf), ("max", np.inf)), start=1):
        operand = node.inputs[position] if position < len(node.inputs) else ""
        if operand and (operand not in arrays or arrays[operand].size != 1):
            return None
        limits.append(float(arrays[operand].item()) if operand else float(node.attributes.get(name, default)))
    low, high = limits
    return (low, high) if low <= high else None


def quantized(node: Node, target: Quantization, output: str, values: _Values, arrays: Arrays) -> Node | None:
    """The node that computes a node's result as integers, called `output`; None if its operands do not allow that."""
    if node.domain != DEFAULT_DOMAIN:
        return None
    build = _BUILDERS.get(node.operator, _unary)
    call = build(node, target, values, arrays)
    if call is None:
        return None
    inputs, attributes = call
    replacement = _replacement(node, QUANTIZED[node.operator], inputs, (output,), attributes)
    return _with_table(replacement, target.dtype, arrays) if replacement.operator in TABULATED else replacement


def times_sigmoid(
    node: Node, target: Quantization, output: str, values: _Values, arrays: Arrays, producers: Mapping[str, Node]
) -> Node | None:
    """The node that computes ``x * sigmoid(x)``, called `output`; None if this is not what a Mul computes.

    Args:
      producers: integer nodes, by the names of their outputs.
    """
    if node.operator != "Mul" or node.domain != DEFAULT_DOMAIN:
        return None
    a, b = (_simple(name, values) for name in node.inputs)
    for x, gate in ((a, b), (b, a)):
        if x is None or gate is None or not x.quantization.dtype == gate.quantization.dtype == target.dtype:
            continue
        sigmoid = producers.get(gate.name)
        if sigmoid is not None and sigmoid.operator == QUANTIZED["Sigmoid"] and sigmoid.inputs[0] == x.name:
            _, _, *sigmoid_parameters = sigmoid.inputs
            inputs = (x.name, *sigmoid_parameters, *x.operands[1:], *gate.operands[1:], *_parameters(target))
            return _with_table(_replacement(node, TIMES_SIGMOID, inputs, (output,), {}), target.dtype, arrays)
    return None


def _with_table(node: Node, dtype: np.dtype, arrays: Arrays) -> Node:
    """A function of one operand of this dtype, with the table of its results as the second."""
    entry = registry.find(node)
    assert entry is not None
    x, *parameters = node.inputs
    integers, values = np.arange(256, dtype=np.uint8).view(dtype), (arrays.by_name.get(name) for name in parameters)
    with jax.ensure_compile_time_eval():
        table = entry.function(integers, None, *values, **node.attributes)
    name = arrays.add_constant(f"{node.outputs[0]}/table", np.asarray(table))
    return dataclasses.replace(node, inputs=(x, name, *parameters))


def _replacement(node: Node, operator: str, inputs: _Inputs, outputs: tuple[str, ...], attributes: _Attributes) -> Node:
    """A node of jquant's domain in the place of `node`."""
    return Node(
        operator=operator,
        domain=JQUANT,
        version=1,
        name=node.name,
        inputs=inputs,
        outputs=outputs,
        attributes=attributes,
    )


_Call = tuple[_Inputs, _Attributes]  # what the integer node is called with


def _parameters(target: Quantization) -> tuple[str, str]:
    return target.scale, target.zero_point


def _simple(name: str, values: _Values) -> Integers | None:
    """The integers of a value, if they have 8 bits and are quantized per tensor."""
    integers = values.get(name)
    return integers if integers is not None and integers.quantization.is_simple else None


def _unary(node: Node, target: Quantization, values: _Values, arrays: Arrays) -> _Call | None:
    """An operator whose result has the dtype of its operand."""
    x = _simple(node.inputs[0], values)
    if x is None or x.quantization.dtype != target.dtype or (node.operator == "Softmax" and node.version < 13):
        return None
    return (*x.operands, *_parameters(target)), dict(node.attributes)


def _average_pool(node: Node, target: Quantization, values: _Values, arrays: Arrays) -> _Call | None:
    x, attributes = _simple(node.inputs[0], values), dict(node.attributes)
    if x is None or attributes.pop("ceil_mode", 0) or len(attributes["kernel_shape"]) not in (2, 3):
        return None
    if attributes.get("auto_pad", "NOTSET").startswith("SAME") and {1} != {1, *attributes.get("dilations", ())}:
        return None  # such windows may lie beyond the padding
    return (*x.operands, *_parameters(target)), {**attributes, "output_dtype": target.dtype.name}


def _n_ary(node: Node, target: Quantization, values: _Values, arrays: Arrays) -> _Call | None:
    """Add, Mul and Concat."""
    integers = [_simple(name, values) for name in node.inputs]
    operands = tuple(name for each in integers if each is not None for name in each.operands)
    if len(operands) != 3 * len(integers):
        return None
    inputs = (*_parameters(target), *operands) if node.operator == "Concat" else (*operands, *_parameters(target))
    return inputs, {**node.attributes, "output_dtype": target.dtype.name}


@dataclasses.dataclass(frozen=True, eq=False)
class _Product:
    """Both operands of a product, and its attributes."""

    a: Integers
    b: Integers
    attributes: _Attributes

    @property
    def operands(self) -> tuple[str, ...]:
        return *self.a.operands, *self.b.operands


def _product(node: Node, values: _Values, arrays: Arrays) -> _Product | None:
    """A MatMul, Gemm or Conv whose operands are quantized, the first per tensor, the second per tensor or per column."""
    a, b, attributes = _simple(node.inputs[0], values), values.get(node.inputs[1]), dict(node.attributes)
    if a is None or b is None or b.quantization.dtype.itemsize != 1:
        return None
    if node.operator == "Gemm":
        if attributes.pop("alpha", 1.0) != 1 or attributes.pop("beta", 1.0) != 1:
            return None
        if attributes.get("transB") and b.name in arrays.by_name:
            b = arrays.transpose(b, None)
            del attributes["transB"]
    weights = arrays.by_name.get(b.name)
    if weights is None:
        fits = b.quantization.axis is None and node.operator != "Conv"
    else:
        columns = 0 if node.operator == "Conv" else weights.ndim - 1
        axis, ranks = b.quantization.axis, range(3, 6) if node.operator == "Conv" else range(2, 9)
        fits = weights.ndim in ranks and (axis is None or axis % weights.ndim == columns)
    return _Product(a=a, b=b, attributes=attributes) if fits else None


def _quantized_product(node: Node, target: Quantization, values: _Values, arrays: Arrays) -> _Call | None:
    product = _product(node, values, arrays)
    if product is None:
        return None
    inputs = (*product.operands, *_parameters(target))
    bias = (*node.inputs, "")[2] if node.operator != "MatMul" else ""
    if bias:
        integers = values.get(bias)
        if integers is None or not _is_bias(integers, product, arrays):
            return None
        inputs = (*inputs, integers.name)
    return inputs, {**product.attributes, "output_dtype": target.dtype.name}


def _is_bias(bias: Integers, product: _Product, arrays: Arrays) -> bool:
    """Whether integers are a bias that can be added to the product's integer sums: int32, with the same scale."""
    quantization, array = bias.quantization, arrays.by_name.get(bias.name)
    if quantization.dtype != np.int32 or quantization.zero_point or array is None:
        return False
    scales = quantization.scales
    if quantization.axis is not None:
        sizes = [1] * array.ndim
        sizes[quantization.axis] = scales.size
        scales = scales.reshape(sizes)
    elif scales.size == 1:
        scales = scales.reshape(())
    sum_scales = product.a.quantization.scales.reshape(-1) * product.b.quantization.scales.reshape(-1)
    try:
        return bool(np.all(np.abs(scales - sum_scales) <= _BIAS_TOLERANCE * sum_scales))
    except ValueError:  # they do not broadcast
        return False


def to_float(node: Node, values: _Values, arrays: Arrays) -> Node | None:
    """The node that computes a product in integers, with a float result; None if its operands do not allow that."""
    product = _product(node, values, arrays) if node.operator in DEQUANTIZED else None
    if product is None:
        return None
    inputs = (*product.operands, *node.inputs[2:])
    return _replacement(node, DEQUANTIZED[node.operator], inputs, node.outputs, product.attributes)


_BUILDERS = {
    "Add": _n_ary,
    "AveragePool": _average_pool,
    "Concat": _n_ary,
    "Conv": _quantized_product,
    "Gemm": _quantized_product,
    "MatMul": _quantized_product,
    "Mul": _n_ary,
}
