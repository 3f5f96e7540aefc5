"""Conditions of If nodes: those that are known when a model is loaded, and the inputs that the others depend on."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, Graph, Node
from jquant.onnx.running import registry
from jquant.onnx.running.evaluate import Evaluation


def decided(graph: Graph, constants: Mapping[str, np.ndarray]) -> Graph:
    """`graph`, with each If whose condition follows from the file and `constants` replaced by the branch that it takes."""
    return _Decision(graph, constants).rewritten(graph)


class _Decision:
    """Computes conditions, as far as they are known, and inlines the branches that they choose."""

    def __init__(self, graph: Graph, constants: Mapping[str, np.ndarray]):
        self._values: dict[str, Any] = dict(constants)
        self._needed = _ancestors(graph, _conditions(graph))
        self._evaluation = Evaluation(overrides={}, static=frozenset(self._needed))

    def rewritten(self, graph: Graph) -> Graph:
        self._values |= {**graph.initializers, **graph.constants}
        nodes, initializers, constants = [], dict(graph.initializers), dict(graph.constants)
        for node in graph.nodes:
            branch = self._branch(node)
            if branch is None:
                bodies = {name: self.rewritten(body) for name, body in node.subgraphs.items()}
                nodes.append(dataclasses.replace(node, attributes={**node.attributes, **bodies}))
                self._compute(node)
                continue
            branch = self.rewritten(branch)
            nodes += branch.nodes
            initializers |= branch.initializers
            constants |= branch.constants
            for value, name in zip(branch.outputs, node.outputs, strict=False):
                nodes.append(_identity(node, value.name, name))
                self._compute(nodes[-1])
        return dataclasses.replace(graph, nodes=tuple(nodes), initializers=initializers, constants=constants)

    def _branch(self, node: Node) -> Graph | None:
        """The branch that an If takes, if its condition is known."""
        is_if = node.qualified_operator == "If" and node.inputs
        condition = self._values.get(node.inputs[0]) if is_if else None
        if not isinstance(condition, np.ndarray) or condition.size != 1:
            return None
        return node.subgraphs.get("then_branch" if condition.item() else "else_branch")

    def _compute(self, node: Node) -> None:
        """Adds a node's results to the values, if a condition needs them and they are known."""
        entry = registry.find(node)
        if entry is None or not entry.folds or self._needed.isdisjoint(node.outputs):
            return
        if all(not name or name in self._values for name in node.inputs):
            operands = [self._values[name] if name else None for name in node.inputs]
            results = self._evaluation.compute(node, operands, self._values)
            self._values |= {name: value for name, value in zip(node.outputs, results, strict=False) if name}


def _identity(node: Node, source: str, output: str) -> Node:
    """An Identity that gives the result of a branch the name of an output of its If, `node`."""
    return Node(
        operator="Identity",
        domain=DEFAULT_DOMAIN,
        version=node.version,
        name=f"{node.name}/{output}",
        inputs=(source,),
        outputs=(output,),
        attributes={},
    )


def deciding(graph: Graph) -> dict[str, tuple[str, ...]]:
    """For the condition of each If, the inputs of the model from which it is computed."""
    inputs = [value.name for value in graph.inputs]
    ancestors = {condition: _ancestors(graph, [condition]) for condition in _conditions(graph)}
    return {condition: tuple(name for name in inputs if name in names) for condition, names in ancestors.items()}


def _conditions(graph: Graph) -> list[str]:
    return [name for node in graph.walk() if node.qualified_operator == "If" for name in node.inputs]


def _ancestors(graph: Graph, names: Iterable[str]) -> set[str]:
    """`names`, and the names of all values from which these are computed."""
    producers: dict[str, Node] = {name: node for node in graph.walk() for name in node.outputs}
    waiting = list(names)
    ancestors: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name and name not in ancestors:
            ancestors.add(name)
            node = producers.get(name)
            if node is not None:
                waiting += node.inputs
                waiting += [value.name for body in node.subgraphs.values() for value in body.outputs]
    return ancestors
