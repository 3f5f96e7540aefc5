"""Sorts nodes topologically. The format demands that writers do so, but some leave it to readers."""

import heapq
import itertools
from collections.abc import Iterator, Sequence

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from jquant.errors import ModelError


def in_order(model: ModelProto) -> ModelProto:
    """`model` itself if every node comes after those whose results it reads, otherwise a copy that is sorted so.

    Nodes of subgraphs and functions are sorted, too. Where there is a choice, nodes keep their order.

    Raises:
      ModelError: nodes that need each other's results, or a value that nothing computes.
    """
    if all(_is_in_order(nodes) for nodes in _lists(model)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for function in copy.functions:
        _sort(function, {*function.input})
    _sort_graph(copy.graph, set())
    return copy


def _lists(model: ModelProto) -> Iterator[Sequence[NodeProto]]:
    """The nodes of each graph and of each function."""
    waiting: list[Sequence[NodeProto]] = [model.graph.node, *(function.node for function in model.functions)]
    while waiting:
        nodes = waiting.pop()
        yield nodes
        waiting += [graph.node for node in nodes for graph in _subgraphs(node)]


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g


def _is_in_order(nodes: Sequence[NodeProto]) -> bool:
    positions = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    return all(positions.get(name, -1) < position for position, node in enumerate(nodes) for name in _reads(node))


def _reads(node: NodeProto) -> Iterator[str]:
    """The values that a node reads, including those that its subgraphs take from outside of them."""
    yield from filter(None, node.input)
    for graph in _subgraphs(node):
        own = {*_predefined(graph), *(name for inner in graph.node for name in inner.output)}
        outputs = (value.name for value in graph.output)
        names = (*(name for inner in graph.node for name in _reads(inner)), *outputs)
        yield from (name for name in names if name not in own)


def _predefined(graph: GraphProto) -> Iterator[str]:
    """The values of a graph that no node computes."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)


def _sort_graph(graph: GraphProto, outer: set[str]) -> None:
    _sort(graph, {*outer, *_predefined(graph)})


def _sort(holder: GraphProto | onnx.FunctionProto, predefined: set[str]) -> None:
    """Sorts the nodes of a graph or a function, and of its subgraphs, which may read the values `predefined`."""
    nodes = list(holder.node)
    defined = predefined | {name for node in nodes for name in node.output if name}
    if not _is_in_order(nodes):
        order = _topological_order(nodes, defined)
        del holder.node[:]
        holder.node.extend(nodes[position] for position in order)
    for node in holder.node:
        for graph in _subgraphs(node):
            _sort_graph(graph, defined)


def _topological_order(nodes: Sequence[NodeProto], defined: set[str]) -> list[int]:
    """The positions of the nodes in the order in which they can be computed, the lowest first where there is a choice."""
    producers = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    needs: list[set[int]] = []
    for node in nodes:
        names = list(_reads(node))
        for name in names:
            if name not in defined:
                raise ModelError(f"node {_title(node)}: nothing computes {name!r}")
        needs.append({producers[name] for name in names if name in producers})
    readers: list[list[int]] = [[] for _ in nodes]
    for position, needed in enumerate(needs):
        for producer in needed:
            readers[producer].append(position)
    ready = [position for position, needed in enumerate(needs) if not needed]
    missing, order = list(map(len, needs)), []
    while ready:
        position = heapq.heappop(ready)
        order.append(position)
        for reader in readers[position]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        raise ModelError(_cycle(nodes, needs, set(range(len(nodes))).difference(order)))
    return order


def _cycle(nodes: Sequence[NodeProto], needs: Sequence[set[int]], remaining: set[int]) -> str:
    """A sentence about nodes that need each other's results. All `remaining` nodes need others among them."""
    path = [min(remaining)]
    while path[-1] not in path[:-1]:
        path.append(min(needs[path[-1]] & remaining))
    cycle = path[path.index(path[-1]) :]
    return "the nodes need each other's results: " + "; ".join(
        f"{_title(nodes[reader])} reads {_value_between(nodes[reader], nodes[producer])} of {_title(nodes[producer])}"
        for reader, producer in itertools.pairwise(cycle)
    )


def _value_between(reader: NodeProto, producer: NodeProto) -> str:
    return repr(next(name for name in _reads(reader) if name in producer.output))


def _title(node: NodeProto) -> str:
    return f"{node.name or next(filter(None, node.output), node.op_type)!r} ({node.op_type})"
