"""The conditions of Ifs: one that is known when a model is loaded is replaced by its branch, and the other is dropped."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jquant.onnx import registry
from jquant.onnx.evaluate import Evaluation
from jquant.onnx.graph import Graph, Node


def decided(graph: Graph, constants: Mapping[str, np.ndarray]) -> Graph:
    """`graph`, with each If whose condition follows from the file and `constants` replaced by the branch that it takes."""
    return _Decision(graph, constants).rewritten(graph)


class _Decision:
    def __init__(self, graph: Graph, constants: Mapping[str, np.ndarray]):
        self._values: dict[str, Any] = dict(constants)
        self._needed = _needed(graph, _conditions(graph))
        self._evaluation = Evaluation({}, frozenset(self._needed))

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
                nodes.append(Node("Identity", "", node.version, f"{node.name}/{name}", (value.name,), (name,), {}))
                self._compute(nodes[-1])
        return dataclasses.replace(graph, nodes=tuple(nodes), initializers=initializers, constants=constants)

    def _branch(self, node: Node) -> Graph | None:
        """The branch that is taken, if it is known."""
        condition = self._values.get(node.inputs[0]) if node.kind == "If" and node.inputs else None
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


def deciding(graph: Graph) -> dict[str, tuple[str, ...]]:
    """For the condition of each If, the inputs of the model from which it is computed."""
    inputs = [value.name for value in graph.inputs]
    needed = {name: _needed(graph, [name]) for name in _conditions(graph)}
    return {name: tuple(each for each in inputs if each in names) for name, names in needed.items()}


def _conditions(graph: Graph) -> list[str]:
    return [name for node in graph.walk() if node.kind == "If" for name in node.inputs]


def _needed(graph: Graph, names: Iterable[str]) -> set[str]:
    """The names of all values from which some values are computed, and theirs."""
    producers: dict[str, Node] = {name: node for node in graph.walk() for name in node.outputs}
    waiting = list(names)
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name and name not in found:
            found.add(name)
            node = producers.get(name)
            if node is not None:
                waiting += node.inputs
                waiting += [value.name for body in node.subgraphs.values() for value in body.outputs]
    return found
