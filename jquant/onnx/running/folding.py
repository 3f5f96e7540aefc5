"""Evaluates what follows from the arrays of a file alone, once, when a model is loaded."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.graphs.graph import Graph, Node, read_counts, rewritten, without_arrays
from jquant.onnx.graphs.values import as_parameter, jax_dtype, to_jax
from jquant.onnx.running import limits, recorded_nodes, registry, statics
from jquant.onnx.running.evaluate import Evaluation

# Operators that move elements. NumPy computes them, without a compiler; their converters give the same elements with JAX.
_MOVING = frozenset(
    [
        "Concat",
        "Flatten",
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    ]
)
_VIEWS = frozenset(["Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"])  # which take no time, but memory if kept
_GROWTH = 8  # how many times as large as the operands results may be: float32 of 4 bits


@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """What parameters were computed from.

    Attributes:
      nodes: those that compute them, in order.
      arrays: those of the file that the nodes read, and what follows from these without parameters, by name.
      free: the names of arrays that are no parameters: programs have them as NumPy arrays.
    """

    nodes: tuple[Node, ...] = ()
    arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    free: frozenset[str] = frozenset()

    def of(self, name: str) -> "Origin":
        """That of one parameter."""
        needed, nodes = {name}, []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.outputs):
                nodes.append(node)
                needed |= {*node.inputs}
        arrays = {key: array for key, array in self.arrays.items() if key in needed}
        return Origin(tuple(reversed(nodes)), arrays, self.free)

    def computed(self) -> dict[str, Any]:
        """The results of all nodes, by name."""
        values = dict(self.arrays)
        evaluation = _evaluation(self.free, self.arrays)
        for node in self.nodes:
            values |= _computed(evaluation, [node], values, self.free)
        return {name: values[name] for name in _outputs(self.nodes)}


@dataclasses.dataclass
class Folded:
    """A graph without the nodes that were evaluated.

    Attributes:
      graph: their results are among its initializers, floats as JAX arrays; what only they read is not.
      results: the names of these initializers.
      origin: how they were computed.
      bytes: those of the arrays that are gone, and of those that took their places.
    """

    graph: Graph
    results: frozenset[str] = frozenset()
    origin: Origin = Origin()
    bytes: tuple[int, int] = (0, 0)

    def release(self) -> None:
        """Lets go of the arrays of the graph, which the caller has then alone."""
        self.graph = without_arrays(self.graph)


def folded(graph: Graph, fixed: Mapping[str, np.ndarray], replaced: Set[str]) -> Folded:
    """Evaluates the nodes whose operands are all in the file, one after the other, each as a call outside `jit` would.

    What follows from sizes and single constants alone, which no parameter holds, costs programs nothing, and stays.

    Args:
      fixed: inputs that the caller fixed.
      replaced: the operators for which the caller has functions, which take the operands as the file has them.
    """
    run = _Run(graph, fixed, replaced)
    run.visit(graph)
    return run.result()


class _Run:
    """What is known so far: values by name, those of them that no parameter holds, and the nodes that computed others."""

    def __init__(self, graph: Graph, fixed: Mapping[str, np.ndarray], replaced: Set[str]):
        self._graph, self._replaced = graph, replaced
        self._file: dict[str, np.ndarray] = {**graph.arrays(), **fixed}
        small = (name for scope in graph.scopes() for name, array in scope.constants.items() if array.size <= 1)
        static = frozenset(statics.Analysis(graph, self._file).static)
        self._free = {*static, *fixed, *small}
        self._evaluation = _evaluation(static, self._file)
        self._values: dict[str, Any] = dict(self._file)
        self._waiting = read_counts(graph)
        self._nodes: list[Node] = []
        self._gone: set[Node] = set()

    def visit(self, graph: Graph) -> None:
        """Evaluates what it can of a graph, and of the bodies of its nodes, which read values of the graphs around them."""
        for _, group in itertools.groupby(graph.nodes, lambda node: node.origin or node):
            nodes = list(group)
            for body in (body for node in nodes for body in node.subgraphs.values()):
                self.visit(body)
            if all(map(self._may, nodes)):
                self._evaluate(nodes)

    def _may(self, node: Node) -> bool:
        """Whether a node computes arrays that no call of the model decides."""
        entry = registry.find(node)
        takes_mask = entry is None or "where" in entry.context
        is_replaced = node.qualified_operator in self._replaced
        return not takes_mask and not is_replaced and not node.subgraphs and recorded_nodes.is_written(node)

    def _evaluate(self, nodes: Sequence[Node]) -> None:
        """Adds the results of nodes, unless something that they read is not known, or a result should not be kept."""
        read = [name for node in nodes for name in node.inputs if name and name not in _outputs(nodes)]
        if not all(name in self._values for name in read):
            return
        is_free = self._free.issuperset(read)
        is_static = is_free and all(map(self._stays_numpy, nodes))
        try:
            if not is_static and not self._may_keep(self._types(nodes, read), read):
                return
            results = _results(nodes, _computed(self._evaluation, nodes, self._values, self._free))
        except ModelError:  # which the call raises, too
            return
        if is_static:
            self._free |= results.keys()
        else:
            self._nodes += nodes
            stays = is_free or self._is_view(nodes, read)  # though nodes that read it may be evaluated
            self._gone |= set() if stays else set(nodes)
        self._values |= results
        self._waiting.subtract(read)
        for name in {*read, *results} - self._file.keys() - self._free:
            if not self._waiting[name]:
                del self._values[name]

    def _is_view(self, nodes: Sequence[Node], read: Iterable[str]) -> bool:
        """Whether nodes only see an array as one of another shape which other nodes read as it is."""
        are_views = all(node.qualified_operator in _VIEWS for node in nodes)
        return are_views and any(name in self._file and self._waiting[name] > 1 for name in read)

    def _stays_numpy(self, node: Node) -> bool:
        """Whether NumPy computes a node from NumPy arrays."""
        entry = registry.find(node)
        return entry is not None and entry.folds and (not entry.expands or not self._free.isdisjoint(node.outputs))

    def _types(self, nodes: Sequence[Node], read: Iterable[str]) -> Iterable[Any]:
        """The types of results, before anything is computed: files may ask for all memory."""
        values = {name: self._values[name] for name in read if name not in self._free}
        arrays = {name: jax.ShapeDtypeStruct(x.shape, jax_dtype(x.dtype, repr(name))) for name, x in values.items()}

        def traced(arrays: Mapping[str, Any]) -> dict[str, Any]:
            return _results(nodes, _computed(self._evaluation, nodes, {**self._values, **arrays}, self._free))

        return jax.eval_shape(traced, arrays).values()

    def _may_keep(self, types: Iterable[Any], read: Iterable[str]) -> bool:
        """Whether results may take the place of what they are computed from.

        Integers of 64 bits are computed as 32 in JAX, and their type in the file would be lost.
        """
        size = _bytes(types)
        live = _bytes(value for name, value in self._values.items() if name not in self._file)
        given = _bytes(self._values[name] for name in set(read))
        is_wide = any(type.dtype.kind in "iu" and type.dtype.itemsize >= 4 for type in types)
        return not is_wide and size <= _GROWTH * given and size + live <= 2 * _GROWTH * _bytes(self._file.values())

    def result(self) -> Folded:
        """The graph without the nodes that were evaluated, and without what only they read."""
        if not self._gone:
            return Folded(self._graph)
        results = frozenset(_outputs(self._gone) & self._values.keys())
        read = {name for node in self._nodes for name in node.inputs if name}
        graph = rewritten(self._graph, {}, _outputs(self._gone))
        new = {name: _as_parameter(self._values.pop(name), name) for name in results}
        graph = dataclasses.replace(graph, initializers={**graph.initializers, **new})
        while unread := _unread(graph, read | self._free):
            graph = rewritten(graph, {}, unread)
        arrays = {name: self._values[name] for name in read if name in self._values}
        origin = Origin(tuple(self._nodes), arrays, frozenset(self._free))
        gone = self._graph.arrays().keys() - graph.arrays().keys()
        return Folded(graph, results, origin, (_bytes(self._file[name] for name in gone), _bytes(new.values())))


def _evaluation(static: frozenset[str], arrays: Mapping[str, np.ndarray]) -> Evaluation:
    return Evaluation({}, static, budget=limits.Budget(_GROWTH * _bytes(arrays.values())))


def _computed(evaluation: Evaluation, nodes: Sequence[Node], values: Mapping[str, Any], free: Set[str]) -> dict[str, Any]:
    """The results of nodes by name, from JAX arrays where a program would have parameters.

    Raises:
      ModelError: as the call of a model does.
    """

    def operand(node: Node, name: str) -> Any:
        value = scope[name] if name in scope else values[name]
        stays = name in free or node.qualified_operator in _MOVING
        return value if stays else as_parameter(value, repr(name))

    scope: dict[str, Any] = {}
    with (
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        jax.debug_nans(False),  # a file may have them
        jax.debug_infs(False),
    ):
        for node in nodes:
            operands = [operand(node, name) if name else None for name in node.inputs]
            scope |= zip(node.outputs, evaluation.compute(node, operands, scope), strict=False)
    scope.pop("", None)
    return scope


def _results(nodes: Sequence[Node], values: Mapping[str, Any]) -> dict[str, Any]:
    """Of all that nodes compute, the results of the node of the file that they stand for."""
    return {name: values[name] for name in (nodes[0].origin or nodes[0]).outputs if name in values}


def _as_parameter(value: Any, name: str) -> Any:
    """A result, of which there is one copy then if it is of floats. Integers may be packed."""
    return value if value.dtype.kind in "iu" else to_jax(value, repr(name))


def _unread(graph: Graph, names: Iterable[str]) -> set[str]:
    """Those of `names` that nothing in the graph reads: arrays, and the results of nodes that have no others."""
    reads = read_counts(graph)
    unread = {name for name in names if not reads[name]}
    nodes = [node for node in graph.walk() if unread.issuperset(_outputs([node]))]
    return (unread & graph.arrays().keys()) | _outputs(nodes)


def _outputs(nodes: Iterable[Node]) -> set[str]:
    return {name for node in nodes for name in node.outputs if name}


def _bytes(arrays: Iterable[Any]) -> int:
    return sum(map(limits.bytes_of, arrays))
