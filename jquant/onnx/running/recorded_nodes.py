"""The nodes of a file as calls of operators, in programs that are traced to be written as a model again."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jquant.lowering import recording
from jquant.onnx.graphs.graph import JQUANT, Graph, Node
from jquant.onnx.graphs.values import is_static

NODE, TYPE, FOLDED = "onnx.node", "onnx.type", "onnx.folded"  # the names of the operators
# What they compute is a list, or may be nothing: no array.
_COLLECTIONS = frozenset(
    {
        "ConcatFromSequence",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SequenceMap",
        "SplitToSequence",
    }
)


@dataclasses.dataclass(frozen=True, eq=False)
class Recorded:
    """What a call of `NODE` holds beside the arrays that the node reads.

    Attributes:
      node: the node.
      known: the values that the node reads and that are known while tracing, by name.
      results: the names of the results that are arrays, in order; the others are known while tracing.
    """

    node: Node
    known: Mapping[str, Any]
    results: list[str] = dataclasses.field(default_factory=list)


def reads(node: Node) -> list[str]:
    """The names of the values that a node reads, also inside its subgraphs, without those that these compute."""
    inside = [scope for body in node.subgraphs.values() for scope in body.scopes()]
    made = {value.name for scope in inside for value in scope.inputs}
    made |= {name for scope in inside for each in scope.nodes for name in each.outputs}
    names = [*node.inputs, *(name for scope in inside for name in _read_in(scope))]
    return [name for name in dict.fromkeys(names) if name and name not in made]


def _read_in(scope: Graph) -> Iterator[str]:
    for node in scope.nodes:
        yield from node.inputs
    yield from (value.name for value in scope.outputs)


def is_written(node: Node) -> bool:
    """Whether a node can be in a file as it is."""
    nodes = [node, *(inner for body in node.subgraphs.values() for inner in body.walk())]
    return all(each.domain != JQUANT and each.qualified_operator not in _COLLECTIONS for each in nodes)


def record(
    node: Node, nodes: Sequence[Node], values: Mapping[str, Any], compute: Callable[[Sequence[Node], dict[str, Any]], None]
) -> dict[str, Any] | None:
    """The results of a node by name, computed by one equation; None for a node that no equation can hold.

    Args:
      nodes: those that compute it: itself, or those of its operator's body.
      values: at least those that the nodes read, by name.
      compute: adds the results of nodes to the values that they read.
    """
    names = [name for name in dict.fromkeys((*reads(node), *itertools.chain(*map(reads, nodes)))) if name in values]
    if not is_written(node) or any(isinstance(values[name], list) for name in names):
        return None
    if node.qualified_operator == "If" and is_static(values[node.inputs[0]]):
        return None  # one of the branches is computed in its place, and the other may not fit
    arrays = {name: values[name] for name in names if not is_static(values[name])}
    call = Recorded(node, {name: values[name] for name in names if name not in arrays})
    known: dict[str, Any] = {}

    def traced(arrays: Mapping[str, Any]) -> list[Any]:
        scope = {**call.known, **arrays}
        compute(nodes, scope)
        known.update((name, scope[name]) for name in filter(None, node.outputs) if is_static(scope[name]))
        call.results[:] = [name for name in node.outputs if name and name not in known]
        return [scope[name] for name in call.results]

    results = recording.record(NODE, traced, {"arrays": arrays}, {"recorded": call})
    return known | dict(zip(call.results, results, strict=True))


def typed(value: Any, dtype: np.dtype) -> Any:
    """A value of which the file says that it has this type, where JAX has a narrower one."""
    return recording.record(TYPE, lambda value: value, {"value": value}, {"dtype": dtype})


def computed(value: Any, name: str, origin: Any) -> Any:
    """A parameter that was computed when the model was loaded, from what its `Origin` says."""
    return recording.record(FOLDED, lambda value: value, {"value": value}, {"name": name, "origin": origin})
