"""Computes a graph node by node, while JAX traces it."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError
from jquant.lowering import recording
from jquant.onnx.graphs.graph import Graph, Node
from jquant.onnx.graphs.values import is_static, to_jax, without_objects
from jquant.onnx.running import axes, bounds, limits, parameter_shapes, recorded_nodes, registry
from jquant.onnx.running.open_sizes import undecided
from jquant.onnx.running.registry import Converter

Values = dict[str, Any]
Watch = Callable[[Node, list[Any], tuple[Any, ...]], tuple[Any, ...] | None]


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """How a graph is computed.

    Attributes:
      overrides: the caller's converters, by operator, for floating-point operands.
      static: the names of values that must be known while tracing.
      where: masks of different shapes: true where a position counts in the ranges of dynamic quantization.
      watch: called with every node, its operands and its results, which it may replace; or None.
      deciding: for the condition of an If, the inputs of the model from which it is computed.
      matched: the shapes of the masks that matched an operand.
      budget: how large results may be.
    """

    overrides: Mapping[str, Converter]
    static: frozenset[str]
    where: tuple[jax.Array, ...] = ()
    watch: Watch | None = None
    deciding: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    matched: set[tuple[int, ...]] = dataclasses.field(default_factory=set)
    budget: limits.Budget = dataclasses.field(default_factory=limits.Budget)

    def run(self, graph: Graph, values: Values) -> list[Any]:
        """The outputs of a graph. `values` holds its inputs and initializers; the outputs of its nodes are added to it."""
        if recording.keeps_nodes():
            self._record(graph, values)
        else:
            self._run(graph.nodes, values)
        return [values[value.name] for value in graph.outputs]

    def _run(self, nodes: Iterable[Node], values: Values) -> None:
        for node in nodes:
            operands = [values[name] if name else None for name in node.inputs]
            results = self.compute(node, operands, values)
            if self.watch is not None:
                results = self.watch(node, operands, results) or results
            values |= {name: value for name, value in zip(node.outputs, results, strict=False) if name}

    def compute(self, node: Node, operands: list[Any], values: Values) -> tuple[Any, ...]:
        """The results of one node.

        Args:
          operands: None for each that is left out.
          values: by name, what its subgraphs read from the surrounding graph.
        """
        entry = registry.find(node)
        assert entry is not None, "the model was checked when it was loaded"
        chosen = self._override(node, operands) or entry
        try:
            with jax.named_scope(node.name), np.errstate(all="ignore"):  # as silent as JAX
                prepared = self._prepared(node, entry, operands)
                keywords = self._keywords(node, chosen, operands, values)
                axes.check(node, entry, operands)
                bounds.check(node, operands)
                if chosen is entry:
                    parameter_shapes.check(node, entry, operands)
                limits.check_known(entry, prepared, keywords, self.budget.known)
                results = chosen.call(prepared, keywords)
                limits.check(results, self.budget.largest)
                if keywords.get("xp") is np:
                    self.budget.take(results)
        except ModelError as error:
            advice = self._advice(node, operands)
            if str(error).startswith("node ") and not advice:
                raise
            raise ModelError(f"{node.title}: {error}{advice}") from error
        except Exception as error:  # whatever NumPy, JAX or a caller's function raises for what it cannot take
            types = ", ".join(map(_type, operands))
            reason = f"{_reason(error)} (its operands: {types})"
            raise ModelError(f"{node.title}: {reason}{self._advice(node, operands)}") from error
        results = tuple(map(_as_array, results)) if isinstance(results, tuple) else (_as_array(results),)
        if len(results) < len(node.outputs) and any(node.outputs[len(results) :]):
            raise ModelError(f"{node.title}: the output {node.outputs[len(results)]!r} is not supported")
        return results

    def _record(self, graph: Graph, values: Values) -> None:
        """Computes each node of the file by one equation, unless the caller decides what it, or one inside it, computes."""
        for node, group in itertools.groupby(graph.nodes, lambda node: node.origin or node):
            nodes = list(group)
            results = None if self._is_changed(nodes) else recorded_nodes.record(node, nodes, values, self._run)
            if results is None:
                self._run(nodes, values)
            else:
                values |= results

    def _is_changed(self, nodes: list[Node]) -> bool:
        """Whether functions of the caller, or masks, change what nodes compute, or those inside them."""
        for node in (*nodes, *(inner for each in nodes for body in each.subgraphs.values() for inner in body.walk())):
            entry = registry.find(node)
            takes_mask = bool(self.where) and entry is not None and "where" in entry.context
            if takes_mask or node.qualified_operator in self.overrides:
                return True
        return False

    def _advice(self, node: Node, operands: list[Any]) -> str:
        """For an If whose condition is not known while tracing: how to fix it, so that only one branch is computed."""
        if node.qualified_operator != "If" or is_static(operands[0]):
            return ""
        inputs = self.deciding.get(node.inputs[0], ())
        if not inputs:
            return ""
        fixed = ", ".join(f"{name!r}: value" for name in inputs)
        return (
            f"\n  the condition is not known while tracing, so both branches have to fit; it follows from "
            f"{', '.join(map(repr, inputs))}, and jquant.onnx.load(..., constants={{{fixed}}}) decides it"
        )

    def _override(self, node: Node, operands: list[Any]) -> Converter | None:
        """The caller's function for a node with a floating-point operand, unless all operands are static."""
        if node.qualified_operator not in self.overrides or all(map(is_static, operands)):
            return None
        dtypes = [operand.dtype for operand in operands if hasattr(operand, "dtype")]
        is_float = any(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes)
        return self.overrides[node.qualified_operator] if is_float else None

    def _prepared(self, node: Node, entry: Converter, operands: list[Any]) -> list[Any]:
        """The operands as JAX arrays, except where the converter takes NumPy arrays."""
        if self._folds(node, entry, operands):
            return operands
        prepared = []
        for position, (name, value) in enumerate(zip(node.inputs, operands, strict=True)):
            operand = entry.operand(position)
            if operand in entry.static and not is_static(value):
                raise ModelError(f"{node.title}: {operand} is not known while tracing")
            is_kept = node.subgraphs or operand in entry.static or operand in entry.prefers_static
            prepared.append(value if is_kept else to_jax(value, repr(name)))
        return prepared

    def _folds(self, node: Node, entry: Converter, operands: list[Any]) -> bool:
        """Whether NumPy computes a node: if its operands are static, and so is a result, if results may be large."""
        if not entry.folds or not all(map(is_static, operands)):
            return False
        return not entry.expands or any(name in self.static for name in node.outputs)

    def _keywords(self, node: Node, entry: Converter, operands: list[Any], values: Values) -> dict[str, Any]:
        """The attributes, with subgraphs as functions, and what else the converter has keywords for."""
        attributes, _ = registry.attributes(node, entry)
        keywords = {
            name: self._body(value, values) if isinstance(value, Graph) else value for name, value in attributes.items()
        }
        if "outputs" in entry.context:
            keywords["outputs"] = len(node.outputs)
        if "xp" in entry.context:
            keywords["xp"] = np if self._folds(node, entry, operands) else jnp
        if "unrolled" in entry.context:
            body_inputs = (value.name for body in node.subgraphs.values() for value in body.inputs)
            keywords["unrolled"] = not self.static.isdisjoint((*node.outputs, *body_inputs))
        if "where" in entry.context:
            keywords["where"] = self._mask(operands[0])
        return keywords

    def _mask(self, x: jax.Array) -> jax.Array | None:
        """The mask that matches the leading dimensions of `x` (of several, the longest), padded with dimensions of 1."""
        matching = [mask for mask in self.where if x.shape[: mask.ndim] == mask.shape]
        if not matching:
            return None
        mask = max(matching, key=lambda mask: mask.ndim)
        self.matched.add(mask.shape)
        return mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))

    def _body(self, graph: Graph, outer: Values) -> Callable[..., list[Any]]:
        """A subgraph as a function of its inputs, in the scope of the surrounding values."""

        def body(*operands: Any) -> list[Any]:
            values = dict(outer) | dict(zip((value.name for value in graph.inputs), operands, strict=True))
            return self.run(graph, values)

        return body


def _as_array(result: Any) -> Any:
    """The result as an array. Instead of an array of rank 0, NumPy returns a scalar or an object."""
    if isinstance(result, list):
        return [_as_array(element) for element in result]
    is_number = isinstance(result, np.generic | int) or jax.export.is_symbolic_dim(result)
    return without_objects(np.asarray(result)) if is_number or isinstance(result, np.ndarray) else result


def _reason(error: Exception) -> str:
    """What went wrong, in words that help. Of a symbolic size, a `_DimExpr`, Python says only that it is not a number."""
    if isinstance(error, TypeError) and "_DimExpr" in str(error):
        return "it uses a size as a number, but the size is left open: fix it"
    comparison = undecided(str(error))
    if comparison is None:
        return str(error)
    return f"{error}; JAX could not decide whether {comparison}: jax.export.symbolic_shape takes this in its constraints"


def _type(value: Any) -> str:
    """The dtype and the shape, as messages state them."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
