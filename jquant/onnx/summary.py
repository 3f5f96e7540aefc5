"""The table that printing a model shows."""

import collections
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jquant.onnx.graphs.graph import JQUANT, MICROSOFT, Graph, Value


class Folding(NamedTuple):
    """What was computed when a model was loaded.

    Attributes:
      operators: how many nodes, by operator.
      before, after: the bytes of the arrays that are gone, and of those that took their places.
    """

    operators: Mapping[str, int]
    before: int
    after: int


def table(
    name: str,
    graph: Graph,
    *,
    inputs: Mapping[str, Value],
    outputs: Mapping[str, Value],
    params: Mapping[str, Any],
    fused: Mapping[str, int],
    folded: Folding,
) -> str:
    """The operator sets of a model, its inputs and outputs, its operators, those that were fused, and its parameters.

    Args:
      name: of the model.
      graph: as it is computed.
      inputs, outputs, params, fused: those of `Model`.
      folded: what was computed when the model was loaded.
    """
    domains = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in _domains(graph))
    lines = [f"{name}: operator sets {domains}"]
    lines += [f"  input   {key}  {value}" for key, value in inputs.items()]
    lines += [f"  output  {key}  {value}" for key, value in outputs.items()]
    counts = collections.Counter(node.qualified_operator for node in graph.walk())
    width = max((len(operator) for operator in counts), default=0)
    for operator, count in sorted(counts.items(), key=lambda item: (not _is_quantized(item[0]), -item[1], item[0])):
        lines.append(f"  {operator:<{width}}  {count:>5}{'  quantized' if _is_quantized(operator) else ''}")
    if fused:
        lines.append("  fused: " + ", ".join(f"{count} {operator}" for operator, count in fused.items()))
    if folded.operators:
        nodes = ", ".join(f"{count} {operator}" for operator, count in folded.operators.items())
        lines.append(f"  computed once: {nodes}; {folded.after:,} bytes in place of {folded.before:,}")
        if folded.after > folded.before:
            lines.append('    qdq="fused" keeps the bytes of integer weights; jquant.transform.quantize multiplies integers')
    leaves = jax.tree.leaves(params)
    integers = sum(_bytes(leaf) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.integer))
    total = sum(map(_bytes, leaves))
    lines.append(f"  parameters: {total:,} bytes in {len(params)} tensors, {integers:,} of them in integers")
    return "\n".join(lines)


def _domains(graph: Graph) -> list[tuple[str, int]]:
    return sorted({(node.domain, node.version) for node in graph.walk() if node.domain != JQUANT})


def _bytes(leaf: Any) -> int:
    """The bytes of an array, in which two integers of 4 bits share one."""
    if not jnp.issubdtype(leaf.dtype, jnp.integer):
        return leaf.nbytes
    return math.ceil(math.prod(leaf.shape) * jnp.iinfo(leaf.dtype).bits / 8)


def _is_quantized(operator: str) -> bool:
    if operator.startswith(f"{JQUANT}."):
        return True
    name = operator.removeprefix(f"{MICROSOFT}.")
    return any(part in name for part in ("uantize", "Integer", "QLinear", "QGemm", "QAttention", "NBits"))
