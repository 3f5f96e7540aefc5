"""Checks the shapes of weights, biases, scales and zero points, as onnxruntime does.

Elements of a parameter of another shape, with as many elements, would be read in an order that nobody stated.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.graphs.graph import Graph, Node, Value
from jquant.onnx.running import registry
from jquant.onnx.running.parameter_rules import RULES, Parameter
from jquant.onnx.running.registry import Converter
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix


def check_file(graph: Graph, constants: Mapping[str, np.ndarray], replaced: Collection[str]) -> None:
    """Checks the parameters whose shapes a file states.

    Args:
      constants: the inputs of the model that are fixed.
      replaced: the operators for which the caller has functions, which take operands in any shape.

    Raises:
      ModelError: a parameter that does not have a shape that its node takes.
    """
    known: dict[str, Any] = {value.name: _declared(value) for value in graph.inputs}
    known |= {**graph.arrays(), **constants}
    for node in graph.walk():
        entry = registry.find(node)
        if entry is not None and node.qualified_operator in RULES and node.qualified_operator not in replaced:
            try:
                check(node, entry, [known.get(name) for name in node.inputs], in_file=True)
            except ModelError as error:
                raise ModelError(f"{node.title}: {error}") from error


def check(node: Node, entry: Converter, operands: Sequence[Any], in_file: bool = False) -> None:
    """Checks the parameters of one node.

    Args:
      operands: None for one that is left out, or whose shape is not known.

    Raises:
      ModelError: a parameter that does not have a shape that the node takes.
    """
    rules = RULES.get(node.qualified_operator)
    if rules is None:
        return
    known = [_as_in_file(node, entry, value) for value in operands]
    named = {entry.operand(position).lower(): value for position, value in enumerate(known) if value is not None}
    for position, value in enumerate(known):
        rule = rules.get(entry.operand(position))
        if rule is None or value is None:
            continue
        shapes = rule(Parameter(value, position, named, node.attributes, in_file))
        if shapes is not None and tuple(value.shape) not in shapes:
            allowed = " or ".join(map(str, dict.fromkeys(shapes)))
            name = f"{entry.operand(position)}, {node.inputs[position]!r},"
            raise ModelError(f"its operand {name} has shape {tuple(value.shape)}; it must have shape {allowed}")


def _declared(value: Value) -> Any:
    """What stands for an input in a check; None if not all of its sizes are stated."""
    sizes = value.shape
    if value.dtype is None or sizes is None or not all(isinstance(size, int) for size in sizes):
        return None
    return jax.ShapeDtypeStruct(sizes, value.dtype)  # type: ignore[arg-type]


def _as_in_file(node: Node, entry: Converter, value: Any) -> Any:
    """A tensor with the shape that the file has; None if its shape, or that shape, is not known."""
    if isinstance(value, PackedMatrix):
        rows, columns = value.shape[-2:]
        if entry.transposed_by and node.attributes.get(entry.transposed_by, 0):
            rows, columns = columns, rows
        return jax.ShapeDtypeStruct((*value.shape[:-2], rows, columns), value.dtype)
    if isinstance(value, PackedBlockMatrix) or not hasattr(value, "shape"):
        return None
    return value if all(isinstance(size, int) for size in value.shape) else None
