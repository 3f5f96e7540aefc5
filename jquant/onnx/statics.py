"""Finds the values that must be known while a program is traced: those that its shapes depend on, and their sources."""

from collections.abc import Iterable

from jquant.onnx import registry, sources
from jquant.onnx.graph import Graph, Node

# Operators that need only the shape of their operands, or whether they are present, or how many there are.
_SHAPES_ALONE = frozenset({"Shape", "Size", "SequenceLength", "OptionalHasElement"})


class Analysis:
    """Follows static operands back to their sources.

    Args:
      graph: the whole graph, with all names unique.
      known: the names of arrays in the file, and of those that the caller gave as constants.

    Attributes:
      static: the names of all values that must be NumPy arrays.
      problems: for each value that cannot be one, a sentence.
    """

    def __init__(self, graph: Graph, known: Iterable[str]):
        self.static: set[str] = set()
        self.problems: list[str] = []
        self._known = frozenset(known)
        self._producers: dict[str, tuple[Node, int]] = {}
        self._inputs = {value.name for value in graph.inputs}
        self._body_inputs: dict[str, list[str]] = {}
        for node in graph.walk():
            self._producers |= {name: (node, index) for index, name in enumerate(node.outputs) if name}
            self._body_inputs |= sources.of_body_inputs(node)
        self._require_all(graph, certain=True)

    def _require_all(self, graph: Graph, certain: bool) -> None:
        """Marks what the nodes of a graph need.

        Args:
          certain: whether the graph will be traced, unlike a branch that is chosen while tracing, whose problems count only
            then.
        """
        for node in graph.nodes:
            entry = registry.find(node)
            if entry is None:
                continue
            decides = sources.decide_sizes(node)
            for position, name in enumerate(node.inputs):
                operand = entry.operand(position)
                if operand in entry.static or name in decides:
                    self._require(name, f"{node.title}: {operand}", certain)
                elif operand in entry.prefers_static and not self._origins(name, unrolled=False):
                    self.static.update(self._ancestors(name))
            chosen = node.kind == "If" and not self._origins(node.inputs[0], unrolled=True)
            for subgraph in node.subgraphs.values():
                self._require_all(subgraph, certain and not chosen)

    def _require(self, name: str, reader: str, certain: bool) -> None:
        """Marks `name` and everything that it is computed from."""
        origins = self._origins(name, unrolled=True)
        if not origins:
            self.static.update(self._ancestors(name))
        elif certain:
            self.problems += [f"{reader} is {name!r}, which depends on {origin}" for origin in origins]

    def _origins(self, name: str, unrolled: bool) -> list[str]:
        """What keeps `name` from being known: inputs of the model, or else the nearest such values.

        Args:
          unrolled: whether values that differ between the iterations of a loop count as known: the loop is then unrolled.
        """
        inputs = []
        for each in self._ancestors(name):
            if each in self._known or (each in self._body_inputs and unrolled):
                continue
            if each in self._inputs:
                inputs.append(
                    f"the input {each!r}: fix it with constants={{{each!r}: ...}}, if it is the same in every call"
                )
                continue
            if each not in self._producers:
                return inputs or [f"{each!r}, which a loop changes"]
            node, _ = self._producers[each]
            entry = registry.find(node)
            if node.kind not in _SHAPES_ALONE | sources.CONTROL_FLOW and (entry is None or not entry.folds):
                return inputs or [f"the data of {node.title}"]
        return inputs

    def _ancestors(self, name: str) -> dict[str, None]:
        """`name` and everything that must be known for it, the nearest first."""
        found: dict[str, None] = {}
        waiting = [name]
        while waiting:
            each = waiting.pop(0)
            if not each or each in found:
                continue
            found[each] = None
            if each in self._body_inputs:
                waiting += self._body_inputs[each]
            elif each not in self._known and each in self._producers:
                node, index = self._producers[each]
                waiting += [] if node.kind in _SHAPES_ALONE else sources.of_output(node, index)
        return found
