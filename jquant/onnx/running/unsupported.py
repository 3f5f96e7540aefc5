"""Finds what a graph has that is not supported."""

from collections.abc import Collection, Iterator, Mapping

from jquant.onnx.graphs.graph import Graph, Node
from jquant.onnx.running import registry
from jquant.onnx.running.registry import Converter


def problems(graph: Graph, overrides: Mapping[str, Converter], constants: Collection[str]) -> list[str]:
    """A sentence about each operator, attribute, operand and input that is not supported, and each value that is undefined.

    A sentence about nodes of one operator names the first, and counts the others: language models have hundreds.

    Args:
      overrides: the caller's functions, by operator.
      constants: the names of the inputs that the caller fixed.
    """
    sentences = _undefined(graph, set())
    strings = [value.name for value in graph.inputs if value.dtype is not None and value.dtype.kind in "OUS"]
    sentences += [
        f"the input {name!r} holds strings, for which JAX has no arrays" for name in strings if name not in constants
    ]
    nodes: dict[tuple[str, int, str], list[Node]] = {}  # by operator, version and what is not supported
    for node in graph.walk():
        for reason in _reasons(node, overrides):
            nodes.setdefault((node.qualified_operator, node.version, reason), []).append(node)
    for (*_, reason), (first, *others) in nodes.items():
        more = f" and {len(others)} more" if others else ""
        sentences.append(f"{first.title}{more}: {reason}")
    return sentences


def _reasons(node: Node, overrides: Mapping[str, Converter]) -> Iterator[str]:
    """Why a node is not supported."""
    entry = registry.find(node)
    if entry is None:
        reason = registry.REFUSED.get(node.qualified_operator)
        yield "this operator is not supported" + (f": {reason}" if reason else "")
        return
    _, unknown = registry.attributes(node, entry)
    yield from (f"its attribute {name} = {node.attributes[name]!r} is not supported" for name in unknown)
    override = overrides.get(node.qualified_operator)
    if override is not None:
        _, unknown = registry.attributes(node, override)
        lacks = f"overrides[{node.qualified_operator!r}] has no parameter for"
        yield from (f"{lacks} {name} = {node.attributes[name]!r}" for name in unknown)
    if len(node.inputs) > len(entry.operands) and not entry.takes_rest:
        yield f"its operand number {len(entry.operands) + 1} is not supported"


def _undefined(graph: Graph, outer: set[str]) -> list[str]:
    """A sentence about each value that a graph reads or returns without computing it first.

    Args:
      outer: the names of the values outside of a subgraph.
    """
    defined = {"", *outer, *graph.initializers, *graph.constants, *(value.name for value in graph.inputs)}
    sentences = []
    for node in graph.nodes:
        sentences += [f"{node.title}: nothing before it computes {name!r}" for name in node.inputs if name not in defined]
        for subgraph in node.subgraphs.values():
            sentences += _undefined(subgraph, defined)
        defined |= set(node.outputs)
    undefined = [value.name for value in graph.outputs if value.name not in defined]
    return sentences + [f"nothing computes the output {name!r}" for name in undefined]
