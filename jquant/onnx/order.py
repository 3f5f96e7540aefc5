"""Puts nodes into an order in which they can be computed. The format demands one, but some writers leave it to readers."""

import heapq
import itertools
from collections.abc import Iterator, Sequence

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from jquant.errors import ModelError


def in_order(model: ModelProto) -> ModelProto:
    """`model` itself if all nodes come after those whose results they read, or else a copy in which they do.

    Nodes of subgraphs and functions count, too. Otherwise, the order stays as it is.

    Raises:
      ModelError: nodes that need each other's results, or a value that nothing computes.
    """
    if all(_is_in_order(nodes) for nodes in _lists(model)):
        return model
    found = ModelProto()
    found.CopyFrom(model)
    for function in found.functions:
        _sort(function, {*function.input})
    _sort_graph(found.graph, set())
    return found


def _lists(model: ModelProto) -> Iterator[Sequence[NodeProto]]:
    """The nodes of all graphs and functions."""
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
    place = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    return all(place.get(name, -1) < i for i, node in enumerate(nodes) for name in _read(node))


def _read(node: NodeProto) -> Iterator[str]:
    """The values that a node reads, including those that its subgraphs take from around it."""
    yield from filter(None, node.input)
    for graph in _subgraphs(node):
        own = {*_given(graph), *(name for each in graph.node for name in each.output)}
        outputs = (value.name for value in graph.output)
        yield from (name for name in (*(name for each in graph.node for name in _read(each)), *outputs) if name not in own)


def _given(graph: GraphProto) -> Iterator[str]:
    """The values of a graph that no node computes."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)


def _sort_graph(graph: GraphProto, outer: set[str]) -> None:
    _sort(graph, {*outer, *_given(graph)})


def _sort(holder: GraphProto | onnx.FunctionProto, given: set[str]) -> None:
    """Sorts the nodes of a graph or a function, and of the graphs inside, which may read the values `given`."""
    nodes = list(holder.node)
    everything = given | {name for node in nodes for name in node.output if name}
    if not _is_in_order(nodes):
        order = _ordered(nodes, everything)
        del holder.node[:]
        holder.node.extend(nodes[place] for place in order)
    for node in holder.node:
        for graph in _subgraphs(node):
            _sort_graph(graph, everything)


def _ordered(nodes: Sequence[NodeProto], everything: set[str]) -> list[int]:
    """The places of the nodes in the order in which they can be computed, the first ones first where there is a choice."""
    producer = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    needs: list[set[int]] = []
    for node in nodes:
        read = list(_read(node))
        for name in read:
            if name not in everything:
                raise ModelError(f"node {_title(node)}: nothing computes {name!r}")
        needs.append({producer[name] for name in read if name in producer})
    readers: list[list[int]] = [[] for _ in nodes]
    for place, each in enumerate(needs):
        for needed in each:
            readers[needed].append(place)
    ready = [place for place, each in enumerate(needs) if not each]
    missing, found = list(map(len, needs)), []
    while ready:
        place = heapq.heappop(ready)
        found.append(place)
        for reader in readers[place]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    if len(found) < len(nodes):
        raise ModelError(_circle(nodes, needs, set(range(len(nodes))).difference(found)))
    return found


def _circle(nodes: Sequence[NodeProto], needs: Sequence[set[int]], left: set[int]) -> str:
    """A sentence about nodes that need each other's results. All nodes in `left` need others in it."""
    walked = [min(left)]
    while walked[-1] not in walked[:-1]:
        walked.append(min(needs[walked[-1]] & left))
    circle = walked[walked.index(walked[-1]) :]
    return "the nodes need each other's results: " + "; ".join(
        f"{_title(nodes[reader])} reads {_between(nodes[reader], nodes[producer])} of {_title(nodes[producer])}"
        for reader, producer in itertools.pairwise(circle)
    )


def _between(reader: NodeProto, producer: NodeProto) -> str:
    return repr(next(name for name in _read(reader) if name in producer.output))


def _title(node: NodeProto) -> str:
    return f"{node.name or next(filter(None, node.output), node.op_type)!r} ({node.op_type})"
