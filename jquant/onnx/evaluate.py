"""Computes a graph node by node while JAX traces it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError
from jquant.onnx import axes, bounds, limits, registry
from jquant.onnx.graph import Graph, Node
from jquant.onnx.open_sizes import undecided
from jquant.onnx.registry import Converter
from jquant.onnx.values import is_static, to_jax, without_objects

Values = dict[str, Any]
Watch = Callable[[Node, list[Any], tuple[Any, ...]], tuple[Any, ...] | None]


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """How a graph is computed.

    Attributes:
      overrides: the caller's converters, by operator, for floating-point operands.
      static: the names of values that must be known while tracing.
      where: masks of different shapes, which say of each position whether it counts in the ranges of dynamic quantization.
      watch: called with every node, its operands and its results, which it may replace; or None.
      deciding: for the condition of an If, the inputs of the model from which it is computed.
      used: the shapes of the masks that fitted an operand.
    """

    overrides: Mapping[str, Converter]
    static: frozenset[str]
    where: tuple[jax.Array, ...] = ()
    watch: Watch | None = None
    deciding: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    used: set[tuple[int, ...]] = dataclasses.field(default_factory=set)

    def run(self, graph: Graph, values: Values) -> list[Any]:
        """The outputs of a graph. `values` holds its inputs and initializers; the outputs of its nodes are added to it."""
        for node in graph.nodes:
            operands = [values[name] if name else None for name in node.inputs]
            results = self.compute(node, operands, values)
            if self.watch is not None:
                results = self.watch(node, operands, results) or results
            values |= {name: value for name, value in zip(node.outputs, results, strict=False) if name}
        return [values[value.name] for value in graph.outputs]

    def compute(self, node: Node, operands: list[Any], values: Values) -> tuple[Any, ...]:
        """The results of one node.

        Args:
          operands: None for each that is left out.
          values: by name, what its subgraphs read from the surrounding graph.
        """
        entry = registry.find(node)
        assert entry is not None, "the model was checked when it was loaded"
        chosen = self._callers_own(node, operands) or entry
        try:
            with jax.named_scope(node.name), np.errstate(all="ignore"):  # as silent as JAX
                prepared, keywords = self._prepared(node, entry, operands), self._keywords(node, chosen, operands, values)
                axes.check(node, entry, operands)
                bounds.check(node, operands)
                limits.check_known(entry, prepared, keywords)
                results = chosen.function(*prepared, **keywords)
                limits.check(results, operands)
        except ModelError as error:
            way_out = self._way_out(node, operands)
            if str(error).startswith("node ") and not way_out:
                raise
            raise ModelError(f"{node.title}: {error}{way_out}") from error
        except Exception as error:  # whatever NumPy, JAX or a caller's function raises for what it cannot take
            given = ", ".join(map(_described, operands))
            reason = f"{_reason(error)} (its operands: {given})"
            raise ModelError(f"{node.title}: {reason}{self._way_out(node, operands)}") from error
        results = tuple(map(_normal, results)) if isinstance(results, tuple) else (_normal(results),)
        if len(results) < len(node.outputs) and any(node.outputs[len(results) :]):
            raise ModelError(f"{node.title}: the output {node.outputs[len(results)]!r} is not supported")
        return results

    def _way_out(self, node: Node, operands: list[Any]) -> str:
        """How to decide an If that is not decided while tracing, so that only the branch that fits is computed."""
        if node.kind != "If" or is_static(operands[0]):
            return ""
        inputs = self.deciding.get(node.inputs[0], ())
        if not inputs:
            return ""
        fixed = ", ".join(f"{name!r}: value" for name in inputs)
        return (
            f"\n  the condition is not known while tracing, so both branches have to fit; it follows from "
            f"{', '.join(map(repr, inputs))}, and jquant.onnx.load(..., constants={{{fixed}}}) decides it"
        )

    def _callers_own(self, node: Node, operands: list[Any]) -> Converter | None:
        """The caller's function for a node with floating-point operands, at least one of which is not static."""
        if node.kind not in self.overrides or all(map(is_static, operands)):
            return None
        dtypes = [each.dtype for each in operands if hasattr(each, "dtype")]
        return self.overrides[node.kind] if any(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes) else None

    def _prepared(self, node: Node, entry: Converter, operands: list[Any]) -> list[Any]:
        if self._folds(node, entry, operands):
            return operands
        prepared = []
        for position, (name, value) in enumerate(zip(node.inputs, operands, strict=True)):
            operand = entry.operand(position)
            if operand in entry.static and not is_static(value):
                raise ModelError(f"{node.title}: {operand} is not known while tracing")
            keeps = node.subgraphs or operand in entry.static or operand in entry.prefers_static
            prepared.append(value if keeps else to_jax(value, repr(name)))
        return prepared

    def _folds(self, node: Node, entry: Converter, operands: list[Any]) -> bool:
        """Whether NumPy computes a node: its operands are known, and if its results may be large, they have to be."""
        if not entry.folds or not all(map(is_static, operands)):
            return False
        return not entry.expands or any(name in self.static for name in node.outputs)

    def _keywords(self, node: Node, entry: Converter, operands: list[Any], values: Values) -> dict[str, Any]:
        given, _ = registry.arguments(node, entry)
        found = {name: self._body(value, values) if isinstance(value, Graph) else value for name, value in given.items()}
        if "outputs" in entry.context:
            found["outputs"] = len(node.outputs)
        if "xp" in entry.context:
            found["xp"] = np if self._folds(node, entry, operands) else jnp
        if "unrolled" in entry.context:
            bodies = node.subgraphs.values()
            found["unrolled"] = not self.static.isdisjoint(
                (*node.outputs, *(x.name for body in bodies for x in body.inputs))
            )
        if "where" in entry.context:
            found["where"] = self._mask(operands[0])
        return found

    def _mask(self, x: jax.Array) -> jax.Array | None:
        """The mask that matches the leading dimensions of `x` (of several, the longest), padded with dimensions of 1."""
        fitting = [mask for mask in self.where if x.shape[: mask.ndim] == mask.shape]
        if not fitting:
            return None
        mask = max(fitting, key=lambda each: each.ndim)
        self.used.add(mask.shape)
        return mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))

    def _body(self, graph: Graph, outer: Values) -> Callable[..., list[Any]]:
        """A subgraph as a function of its inputs, in the scope of the surrounding values."""

        def body(*operands: Any) -> list[Any]:
            values = dict(outer) | dict(zip((value.name for value in graph.inputs), operands, strict=True))
            return self.run(graph, values)

        return body


def _normal(result: Any) -> Any:
    """The result as an array: instead of an array without dimensions, NumPy returns its own numbers, or objects."""
    if isinstance(result, list):
        return [_normal(each) for each in result]
    is_number = isinstance(result, np.generic | int) or jax.export.is_symbolic_dim(result)
    return without_objects(np.asarray(result)) if is_number or isinstance(result, np.ndarray) else result


def _reason(error: Exception) -> str:
    """What went wrong. For a symbolic size, whose type is JAX's `_DimExpr`, Python says only that it is not a number."""
    if isinstance(error, TypeError) and "_DimExpr" in str(error):
        return "it uses a size as a number, but the size is left open: fix it"
    comparison = undecided(str(error))
    if comparison is None:
        return str(error)
    return f"{error}; JAX could not decide whether {comparison}: jax.export.symbolic_shape takes this in its constraints"


def _described(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
