"""QDQ fusion: replaces DequantizeLinear, an operator and QuantizeLinear by one integer operator."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from jquant.onnx.fusing import integer_nodes, quantization
from jquant.onnx.fusing.fusion_values import Arrays, Integers
from jquant.onnx.fusing.qdq_patterns import CLAMPS, PASSED_THROUGH, QUANTIZED
from jquant.onnx.fusing.quantization import Quantization
from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, JQUANT, Graph, Node


def fused(graph: Graph, dtypes: Mapping[str, np.dtype]) -> tuple[Graph, dict[str, int]]:
    """`graph`, computed in integers wherever its quantization allows, and the numbers of operators fused, by operator.

    A DequantizeLinear moves behind operators that pass integers through, and disappears before a QuantizeLinear with the
    same scale and zero point. An operator between DequantizeLinear and QuantizeLinear becomes an integer operator if nothing
    else reads the values in between. Scales and zero points must be in the file. Integers must have 8 bits; those of a bias,
    32.

    Args:
      graph: the whole graph, with all names unique.
      dtypes: the dtypes of values, by name, as far as they are known.
    """
    counts: collections.Counter[str] = collections.Counter()
    result = _fused(graph, Arrays(graph.arrays(), dtypes), counts)
    return result, dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _fused(graph: Graph, arrays: Arrays, counts: collections.Counter[str]) -> Graph:
    nodes = []
    for node in graph.nodes:
        subgraphs = {name: _fused(subgraph, arrays, counts) for name, subgraph in node.subgraphs.items()}
        nodes.append(dataclasses.replace(node, attributes={**node.attributes, **subgraphs}) if subgraphs else node)
    graph = dataclasses.replace(graph, nodes=tuple(nodes))
    fusion = _Fusion(graph, arrays)
    for node in graph.nodes:
        fusion.add(node)
    alive = _alive(fusion.nodes, graph)
    counts.update(operator for node in alive for operator in fusion.replaced.get(node, ()))
    result = dataclasses.replace(graph, nodes=alive)
    before, after = set(_reads(graph)), set(_reads(result))

    def used(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: array for name, array in tensors.items() if name in after or name not in before}

    def added(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: array for name, array in tensors.items() if name in after}

    return dataclasses.replace(
        result,
        initializers=used(graph.initializers) | added(arrays.transposed),
        constants=used(graph.constants) | added(arrays.constants),
    )


def _reads(graph: Graph) -> Iterator[str]:
    """The name of a value for each time that it is read, also in subgraphs."""
    for scope in graph.scopes():
        yield from (value.name for value in scope.outputs)
        for node in scope.nodes:
            yield from node.inputs


def _alive(nodes: list[Node], graph: Graph) -> tuple[Node, ...]:
    """The nodes whose outputs are read."""
    needed = {value.name for value in graph.outputs}
    alive = []
    for node in reversed(nodes):
        if needed.isdisjoint(filter(None, node.outputs)):
            continue
        needed.update(node.inputs)
        for subgraph in node.subgraphs.values():
            needed.update(_reads(subgraph))
        alive.append(node)
    return tuple(reversed(alive))


class _ClampedValue(NamedTuple):
    """What a QuantizeLinear quantizes: a value, and the clamps between the two.

    Attributes:
      name: the value before the clamps.
      low, high: the bounds of all clamps together, as integers.
      operators: the operators of the clamps.
      is_shared: whether anything else reads the value, clamped or not.
    """

    name: str
    low: int
    high: int
    operators: tuple[str, ...]
    is_shared: bool


class _Fusion:
    """Processes the nodes of a graph in order.

    Attributes:
      nodes: the resulting nodes, including some whose outputs nothing reads any more.
      replaced: for each integer node, the operators that it replaces.
    """

    def __init__(self, graph: Graph, arrays: Arrays):
        self.nodes: list[Node] = []
        self.replaced: dict[Node, tuple[str, ...]] = {}
        self._arrays = arrays
        self._reads = collections.Counter(_reads(graph))
        self._producers = {name: node for node in graph.nodes for name in node.outputs if name}
        self._emitted: dict[str, Node] = {}  # the integer nodes, by the names of their outputs
        self._integers: dict[str, Integers] = {}  # by the names of the values that a DequantizeLinear computes from them

    def add(self, node: Node) -> None:
        """Adds `node`, or what replaces it."""
        if quantization.is_dequantize(node):
            name = node.inputs[0]
            source = quantization.from_node(node, self._arrays.by_name, self._arrays.dtype(name))
            if source is not None and source.fits(self._arrays.by_name.get(name)):
                self._integers[node.outputs[0]] = Integers(name=name, quantization=source, node=node)
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
                product = integer_nodes.to_float(node, self._integers, self._arrays)
                if product is not None:
                    self._emit(product, f"{node.operator} to float")
                    return
        self.nodes.append(node)

    def _emit(self, node: Node, *replaced: str) -> None:
        self.nodes.append(node)
        self.replaced[node] = replaced
        self._emitted |= dict.fromkeys(node.outputs, node)

    def _add_quantized(self, node: Node) -> bool:
        """Replaces a QuantizeLinear by integers that already exist, or by an operator that computes them, if it can."""
        target = quantization.from_node(node, self._arrays.by_name, None)
        source = target and target.is_simple and self._before_clamps(node.inputs[0], target)
        if not target or not source:
            return False
        integers = self._integers.get(source.name)
        has_clamp = (source.low, source.high) != target.limits
        output = f"{node.outputs[0]}/unclamped" if has_clamp else node.outputs[0]
        if integers is not None and integers.quantization.equals(target):
            if has_clamp:
                output = integers.name
            else:
                self.nodes.append(_identity(node, integers.name, output))
        else:
            operation = self._producers.get(source.name)
            if operation is None or source.is_shared or operation.operator not in QUANTIZED:
                return False
            known = self._integers, self._arrays
            swish = integer_nodes.times_sigmoid(operation, target, output, *known, self._emitted)
            replacement = swish or integer_nodes.quantized(operation, target, output, *known)
            if replacement is None:
                return False
            replaced = operation.operator if swish is None else f"{operation.operator} with Sigmoid"
            self._emit(replacement, replaced, *(() if has_clamp else source.operators))
        if has_clamp:
            self._emit(_clamp(node.name, output, node.outputs[0], source.low, source.high), *source.operators)
        return True

    def _before_clamps(self, name: str, target: Quantization) -> _ClampedValue:
        """Follows a value back through its clamps. Quantization is monotonic, so integers can be clamped instead."""
        low, high = target.limits
        operators: tuple[str, ...] = ()
        is_shared = self._reads[name] != 1
        while name in self._producers and name not in self._integers and _is_clamp(self._producers[name]):
            node = self._producers[name]
            bounds = integer_nodes.bounds(node, self._arrays.by_name)
            if bounds is None:
                break
            first, last = map(target.quantized, bounds)
            low, high = (min(max(bound, low), high) for bound in (first, last))
            operators = (node.operator, *operators)
            name = node.inputs[0]
            is_shared = is_shared or self._reads[name] != 1
        return _ClampedValue(name=name, low=low, high=high, operators=operators, is_shared=is_shared)

    def _add_clamped(self, node: Node) -> bool:
        """Replaces a clamp by one of integers, if integers represent its bounds, or if these are beyond all integers."""
        integers, bounds = self._integers.get(node.inputs[0]), integer_nodes.bounds(node, self._arrays.by_name)
        if integers is None or bounds is None or not integers.quantization.is_simple:
            return False
        source = integers.quantization
        integer_bounds = []
        for bound, limit in zip(bounds, source.limits, strict=True):
            value, end = source.quantized(bound), source.dequantized(limit)
            is_beyond = bound <= end if limit == source.limits[0] else bound >= end
            if not is_beyond and source.dequantized(value) != bound:
                return False
            integer_bounds.append(value)
        (output,) = node.outputs
        low, high = integer_bounds
        self._emit(_clamp(node.name, integers.name, _integers_name(output), low, high), node.operator)
        self._add_dequantize(dataclasses.replace(integers, name=_integers_name(output)), output)
        return True

    def _add_passed_through(self, node: Node) -> bool:
        """Applies an operator that selects elements to integers instead of the numbers that they represent, if it can."""
        call = integer_nodes.passed_through(node, self._integers, self._arrays)
        if call is None:
            return False
        integers, inputs = call
        if node.operator == "Transpose" and integers.name in self._arrays.by_name:  # weights
            axes = list(range(self._arrays.by_name[integers.name].ndim))
            if sorted(node.attributes.get("perm", ())) not in ([], axes):
                return False  # the node raises an error when it is computed
            transposed = self._arrays.transpose(integers, node.attributes.get("perm"))
            self._add_dequantize(transposed, node.outputs[0])
            return True
        if not integers.quantization.is_simple:
            return False
        outputs = tuple(_integers_name(name) if name else "" for name in node.outputs)
        self._emit(dataclasses.replace(node, inputs=inputs, outputs=outputs), node.operator)
        for name in filter(None, node.outputs):
            self._add_dequantize(dataclasses.replace(integers, name=_integers_name(name)), name)
        return True

    def _add_dequantize(self, integers: Integers, output: str) -> None:
        """Adds a DequantizeLinear behind a node, in place of the one before it."""
        axis = integers.quantization.axis
        node = dataclasses.replace(
            integers.node,
            name=f"{output}/dequantized",
            inputs=(integers.name, *integers.node.inputs[1:]),
            outputs=(output,),
            attributes={} if axis is None else {"axis": axis},
        )
        self.nodes.append(node)
        self._integers[output] = integers


def _integers_name(name: str) -> str:
    """The name of the integers that represent a value."""
    return f"{name}/integers"


def _is_clamp(node: Node) -> bool:
    return node.domain == DEFAULT_DOMAIN and node.operator in CLAMPS


def _clamp(name: str, source: str, output: str, low: int, high: int) -> Node:
    return Node(
        operator="clamp",
        domain=JQUANT,
        version=1,
        name=name,
        inputs=(source,),
        outputs=(output,),
        attributes={"low": low, "high": high},
    )


def _identity(node: Node, source: str, output: str) -> Node:
    """An Identity in the place of a QuantizeLinear, `node`."""
    return Node(
        operator="Identity",
        domain=DEFAULT_DOMAIN,
        version=node.version,
        name=node.name,
        inputs=(source,),
        outputs=(output,),
        attributes={},
    )
