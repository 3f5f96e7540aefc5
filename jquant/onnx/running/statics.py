"""Finds the values that must be known while a program is traced: all that its shapes are computed from."""

from collections.abc import Iterable

from jquant.onnx.graphs import sources
from jquant.onnx.graphs.graph import Graph, Node
from jquant.onnx.running import registry

# Operators that read no elements: only the shape of an operand, the length of a sequence, or whether there is an operand.
_SHAPE_ONLY = frozenset({"Shape", "Size", "SequenceLength", "OptionalHasElement"})


class Analysis:
    """Follows static operands back to the values that they are computed from.

    Args:
      graph: the whole graph, with all names unique.
      known: the names of the arrays in the file, and of the inputs that the caller fixed.

    Attributes:
      static: the names of all values that must be NumPy arrays.
      problems: for each value that cannot be a NumPy array, a sentence that says why.
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
            self._body_inputs |= sources.body_input_sources(node)
        self._require_all(graph, certain=True)

    def _require_all(self, graph: Graph, certain: bool) -> None:
        """Marks the static operands of all nodes of a graph.

        Args:
          certain: whether the graph will certainly be traced. A branch may not be, so its problems are no reason to refuse
            the model.
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
            chosen = node.qualified_operator == "If" and not self._origins(node.inputs[0], unrolled=True)
            for subgraph in node.subgraphs.values():
                self._require_all(subgraph, certain and not chosen)

    def _require(self, name: str, reader: str, certain: bool) -> None:
        """Marks `name`, and everything that it is computed from, as static, or adds a problem."""
        origins = self._origins(name, unrolled=True)
        if not origins:
            self.static.update(self._ancestors(name))
        elif certain:
            self.problems += [f"{reader} is {name!r}, which depends on {origin}" for origin in origins]

    def _origins(self, name: str, unrolled: bool) -> list[str]:
        """Why `name` cannot be known: the inputs that it depends on, or else the nearest value that is not known.

        Args:
          unrolled: whether values that differ between the iterations of a loop count as known: the loop is then unrolled.
        """
        inputs = []
        for ancestor in self._ancestors(name):
            if ancestor in self._known or (ancestor in self._body_inputs and unrolled):
                continue
            if ancestor in self._inputs:
                fix = f"fix it with constants={{{ancestor!r}: ...}}, if it is the same in every call"
                inputs.append(f"the input {ancestor!r}: {fix}")
                continue
            if ancestor not in self._producers:
                return inputs or [f"{ancestor!r}, which a loop changes"]
            node, _ = self._producers[ancestor]
            entry = registry.find(node)
            needs_data = node.qualified_operator not in _SHAPE_ONLY | sources.CONTROL_FLOW
            if needs_data and (entry is None or not entry.folds):
                return inputs or [f"the data of {node.title}"]
        return inputs

    def _ancestors(self, name: str) -> dict[str, None]:
        """`name` and everything that must be known for it, the nearest first."""
        ancestors: dict[str, None] = {}  # an ordered set
        waiting = [name]
        while waiting:
            ancestor = waiting.pop(0)
            if not ancestor or ancestor in ancestors:
                continue
            ancestors[ancestor] = None
            if ancestor in self._body_inputs:
                waiting += self._body_inputs[ancestor]
            elif ancestor not in self._known and ancestor in self._producers:
                node, index = self._producers[ancestor]
                waiting += [] if node.qualified_operator in _SHAPE_ONLY else sources.output_sources(node, index)
        return ancestors
