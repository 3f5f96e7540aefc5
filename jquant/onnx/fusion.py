"""Replaces DequantizeLinear, an operator and QuantizeLinear by one integer operator."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from jquant.onnx import integer_nodes, quantization
from jquant.onnx.graph import DEFAULT_DOMAIN, JQUANT, Graph, Node
from jquant.onnx.integer_nodes import Integers, Known
from jquant.onnx.qdq_patterns import CLAMPS, PASSED_THROUGH, QUANTIZED
from jquant.onnx.quantization import Quantization


def fused(graph: Graph, dtypes: Mapping[str, np.dtype]) -> tuple[Graph, dict[str, int]]:
    """`graph`, computed in integers wherever its quantization allows, and the number of such operators, by operator.

    A DequantizeLinear moves behind operators that pass integers through, and disappears before a QuantizeLinear with the
    same scale and zero point. An operator between DequantizeLinear and QuantizeLinear becomes an integer operator if nothing
    else reads the values in between. Scales and zero points must be in the file; integers have 8 bits, those of a bias 32.

    Args:
      graph: the whole graph, with all names unique.
      dtypes: those of the values whose element type is known.
    """
    known = {name: array for each in graph.scopes() for name, array in {**each.initializers, **each.constants}.items()}
    counts: collections.Counter[str] = collections.Counter()
    found = _fused(graph, Known(known, dtypes), counts)
    return found, dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _fused(graph: Graph, known: Known, counts: collections.Counter[str]) -> Graph:
    nodes = []
    for node in graph.nodes:
        subgraphs = {name: _fused(each, known, counts) for name, each in node.subgraphs.items()}
        nodes.append(dataclasses.replace(node, attributes={**node.attributes, **subgraphs}) if subgraphs else node)
    graph = dataclasses.replace(graph, nodes=tuple(nodes))
    fusion = _Fusion(graph, known)
    for node in graph.nodes:
        fusion.add(node)
    alive = _alive(fusion.nodes, graph)
    counts.update(name for node in alive for name in fusion.names.get(node, ()))
    found = dataclasses.replace(graph, nodes=alive)
    before, after = set(_read(graph)), set(_read(found))
    arrays = {
        field: {name: array for name, array in getattr(graph, field).items() if name in after or name not in before}
        for field in ("initializers", "constants")
    }
    arrays["initializers"] |= {name: array for name, array in known.transposed.items() if name in after}
    arrays["constants"] |= {name: array for name, array in known.constants.items() if name in after}
    return dataclasses.replace(found, **arrays)


def _read(graph: Graph) -> Iterator[str]:
    """The names of all values that are read, once for each time that they are, in subgraphs, too."""
    for each in graph.scopes():
        yield from (value.name for value in each.outputs)
        for node in each.nodes:
            yield from node.inputs


def _alive(nodes: list[Node], graph: Graph) -> tuple[Node, ...]:
    """The nodes whose outputs are read."""
    needed = {value.name for value in graph.outputs}
    found = []
    for node in reversed(nodes):
        if needed.isdisjoint(filter(None, node.outputs)):
            continue
        needed.update(node.inputs)
        for subgraph in node.subgraphs.values():
            needed.update(_read(subgraph))
        found.append(node)
    return tuple(reversed(found))


class _Chain(NamedTuple):
    """What a QuantizeLinear quantizes, before clamps.

    Attributes:
      name: the value.
      low, high: the bounds of the clamps, as integers.
      operators: the operators of the clamps.
      is_shared: whether anything else reads a value in between.
    """

    name: str
    low: int
    high: int
    operators: tuple[str, ...]
    is_shared: bool


class _Fusion:
    """Processes the nodes of a graph in order.

    Attributes:
      nodes: the resulting nodes, some of which no other node reads.
      names: for each integer node, the operators that it replaces.
    """

    def __init__(self, graph: Graph, known: Known):
        self.nodes: list[Node] = []
        self.names: dict[Node, tuple[str, ...]] = {}
        self._known = known
        self._readers = collections.Counter(_read(graph))
        self._producers = {name: node for node in graph.nodes for name in node.outputs if name}
        self._integers: dict[str, Integers] = {}  # for values that a DequantizeLinear computes

    def add(self, node: Node) -> None:
        """Adds `node`, or what replaces it."""
        if quantization.is_dequantize(node):
            found = quantization.of_node(node, self._known.arrays, self._known.dtype(node.inputs[0]))
            if found is not None and found.fits(self._known.arrays.get(node.inputs[0])):
                self._integers[node.outputs[0]] = Integers(node.inputs[0], found, node)
        elif quantization.is_quantize(node):
            if self._add_quantized(node):
                return
        elif node.domain == DEFAULT_DOMAIN:
            if node.operator in ("Shape", "Size") and node.inputs[0] in self._integers:
                node = dataclasses.replace(node, inputs=(self._integers[node.inputs[0]].name,))
            elif node.operator in CLAMPS:
                if self._add_clamped(node):
                    return
            elif node.operator in PASSED_THROUGH:
                if self._add_passed_through(node):
                    return
            else:
                product = integer_nodes.to_float(node, self._integers, self._known)
                if product is not None:
                    self._emit(product, f"{node.operator} to float")
                    return
        self.nodes.append(node)

    def _emit(self, node: Node, *names: str) -> None:
        self.nodes.append(node)
        self.names[node] = names

    def _add_quantized(self, node: Node) -> bool:
        """A QuantizeLinear: integers that already exist, or an operator that computes them."""
        target = quantization.of_node(node, self._known.arrays, None)
        chain = target and target.is_simple and self._chain(node.inputs[0], target)
        if not target or not chain:
            return False
        given = self._integers.get(chain.name)
        clamps = (chain.low, chain.high) != target.limits
        output = f"{node.outputs[0]}/unclamped" if clamps else node.outputs[0]
        if given is not None and given.quantization.equals(target):
            if clamps:
                output = given.name
            else:
                self.nodes.append(_node("Identity", DEFAULT_DOMAIN, node.version, node.name, (given.name,), (output,)))
        else:
            operation = self._producers.get(chain.name)
            if operation is None or chain.is_shared or operation.operator not in QUANTIZED:
                return False
            found = integer_nodes.quantized(operation, target, output, self._integers, self._known)
            if found is None:
                return False
            self._emit(found, operation.operator, *(() if clamps else chain.operators))
        if clamps:
            self._emit(_clamp(node.name, output, node.outputs[0], chain.low, chain.high), *chain.operators)
        return True

    def _chain(self, name: str, target: Quantization) -> _Chain | None:
        """Follows a value back through its clamps. Quantization keeps the order, so integers can be clamped instead."""
        low, high = target.limits
        operators: tuple[str, ...] = ()
        is_shared = self._readers[name] != 1
        while name in self._producers and name not in self._integers and _is_clamp(self._producers[name]):
            node = self._producers[name]
            bounds = integer_nodes.bounds(node, self._known.arrays)
            if bounds is None:
                break
            first, last = map(target.quantized, bounds)
            low, high = (min(max(bound, low), high) for bound in (first, last))
            operators = (node.operator, *operators)
            name = node.inputs[0]
            is_shared = is_shared or self._readers[name] != 1
        return _Chain(name, low, high, operators, is_shared)

    def _add_clamped(self, node: Node) -> bool:
        """A clamp of integers, if its bounds are integers after quantization."""
        given, bounds = self._integers.get(node.inputs[0]), integer_nodes.bounds(node, self._known.arrays)
        if given is None or bounds is None or not given.quantization.is_simple:
            return False
        integers = []
        for bound, limit in zip(bounds, given.quantization.limits, strict=True):
            value, end = given.quantization.quantized(bound), given.quantization.dequantized(limit)
            beyond = bound <= end if limit == given.quantization.limits[0] else bound >= end
            if not beyond and given.quantization.dequantized(value) != bound:
                return False
            integers.append(value)
        (output,) = node.outputs
        clamped = _clamp(node.name, given.name, _integers(output), *integers)
        self._emit(clamped, node.operator)
        self._add_dequantize(dataclasses.replace(given, name=_integers(output)), output)
        return True

    def _add_passed_through(self, node: Node) -> bool:
        """An operator that does the same to integers as to the numbers they stand for."""
        found = integer_nodes.passed_through(node, self._integers, self._known)
        if found is None:
            return False
        given, inputs = found
        if node.operator == "Transpose" and given.name in self._known.arrays:  # weights
            if sorted(node.attributes.get("perm", ())) not in ([], list(range(self._known.arrays[given.name].ndim))):
                return False  # which raises where it is computed
            turned = self._known.transpose(given, node.attributes.get("perm"))
            self._add_dequantize(turned, node.outputs[0])
            return True
        if not given.quantization.is_simple:
            return False
        outputs = tuple(_integers(name) if name else "" for name in node.outputs)
        self._emit(dataclasses.replace(node, inputs=inputs, outputs=outputs), node.operator)
        for name in filter(None, node.outputs):
            self._add_dequantize(dataclasses.replace(given, name=_integers(name)), name)
        return True

    def _add_dequantize(self, given: Integers, output: str) -> None:
        """A DequantizeLinear behind a node, in place of the one before it."""
        axis = {} if given.quantization.axis is None else {"axis": given.quantization.axis}
        inputs = (given.name, *given.node.inputs[1:])
        node = _node("DequantizeLinear", given.node.domain, given.node.version, f"{output}/dequantized", inputs, (output,))
        self.nodes.append(dataclasses.replace(node, attributes=axis))
        self._integers[output] = given


def _integers(name: str) -> str:
    """A name for the integers that stand for a value."""
    return f"{name}/integers"


def _is_clamp(node: Node) -> bool:
    return node.domain == DEFAULT_DOMAIN and node.operator in CLAMPS


def _clamp(name: str, given: str, output: str, low: int, high: int) -> Node:
    return _node("clamp", JQUANT, 1, name, (given,), (output,), {"low": low, "high": high})


def _node(
    operator: str,
    domain: str,
    version: int,
    name: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    attributes: Mapping[str, Any] | None = None,
) -> Node:
    return Node(operator, domain, version, name, inputs, outputs, attributes or {})
