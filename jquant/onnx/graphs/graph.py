"""A model's graph as plain data, in which every value has a unique name, also in subgraphs."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np

DEFAULT_DOMAIN = ""  # ONNX's own
MICROSOFT = "com.microsoft"  # onnxruntime's
JQUANT = "jquant"  # of the nodes that fusion makes; no file has it


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One call of an operator.

    Attributes:
      operator, domain: such as "Conv" and "" (ONNX's own), or "QLinearAdd" and "com.microsoft".
      version: the version of the domain's operator set that the model imports.
      name: the name of the node, or else of its first output.
      inputs, outputs: names of values; "" for one that is left out.
      attributes: by name, numbers, strings, lists of these, NumPy arrays, and `Graph` for a subgraph.
      origin: the node of the file that it and its neighbours compute, if that was replaced by the body of its operator.
    """

    operator: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    origin: "Node | None" = None

    @property
    def qualified_operator(self) -> str:
        """The operator's name, after its domain if that is not ONNX's own."""
        return f"{self.domain}.{self.operator}" if self.domain else self.operator

    @property
    def title(self) -> str:
        """How messages name the node: one of a body after the node of the file that it helps to compute."""
        title = f"node {self.name!r} ({self.qualified_operator}, version {self.version})"
        return title if self.origin is None else f"{self.origin.title}: in its body, {title}"

    @property
    def subgraphs(self) -> dict[str, "Graph"]:
        return {name: value for name, value in self.attributes.items() if isinstance(value, Graph)}


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """What a graph declares about a value.

    Attributes:
      dtype: the element type; None if it is not declared, or if the value is no tensor.
      shape: the sizes, with a name or None for each that is not fixed; None if the rank is not fixed either.
    """

    name: str
    dtype: np.dtype | None
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        sizes = "?" if self.shape is None else ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype or 'of no tensor type'}[{sizes}]"


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in an order in which they can be computed.

    Attributes:
      inputs: the inputs without an initializer.
      initializers: the tensors of the file, by name.
      constants: the values of Constant nodes, which are not among `nodes`, by the names of their outputs.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    initializers: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    constants: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def arrays(self) -> dict[str, np.ndarray]:
        """All initializers and constants by name, including those of subgraphs."""
        return {name: array for graph in self.scopes() for name, array in {**graph.initializers, **graph.constants}.items()}

    def walk(self) -> Iterator[Node]:
        """All nodes, including those of subgraphs."""
        for graph in self.scopes():
            yield from graph.nodes

    def scopes(self) -> Iterator["Graph"]:
        """The graph itself and its subgraphs."""
        yield self
        for node in self.nodes:
            for subgraph in node.subgraphs.values():
                yield from subgraph.scopes()


def rewritten(graph: Graph, replacements: Mapping[Node, Node], unread: Set[str] = frozenset()) -> Graph:
    """`graph` with other nodes in the place of some, and without the values `unread`."""
    nodes = []
    for node in graph.nodes:
        if not unread.isdisjoint(node.outputs):
            continue
        bodies = {name: rewritten(body, replacements, unread) for name, body in node.subgraphs.items()}
        node = replacements.get(node, node)
        nodes.append(dataclasses.replace(node, attributes={**node.attributes, **bodies}))
    initializers, constants = (
        {name: array for name, array in arrays.items() if name not in unread}
        for arrays in (graph.initializers, graph.constants)
    )
    return dataclasses.replace(graph, nodes=tuple(nodes), initializers=initializers, constants=constants)


def without_arrays(graph: Graph) -> Graph:
    """`graph`, and the graphs inside it, without initializers and constants."""
    nodes = []
    for node in graph.nodes:
        bodies = {name: without_arrays(body) for name, body in node.subgraphs.items()}
        nodes.append(dataclasses.replace(node, attributes={**node.attributes, **bodies}) if bodies else node)
    return dataclasses.replace(graph, nodes=tuple(nodes), initializers={}, constants={})


def read_counts(graph: Graph) -> collections.Counter[str]:
    """How often each value is read or returned."""
    outputs = (value.name for scope in graph.scopes() for value in scope.outputs)
    return collections.Counter([*(name for node in graph.walk() for name in node.inputs), *outputs])
