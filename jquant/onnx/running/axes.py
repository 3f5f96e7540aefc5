"""Checks axes against the rank of their tensor. NumPy and JAX wrap some axes, and their errors do not name the attribute."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jquant.errors import ModelError
from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, JQUANT, MICROSOFT, Node
from jquant.onnx.graphs.values import sizes
from jquant.onnx.running import registry
from jquant.onnx.running.registry import Converter

NAMES = frozenset(
    ("axis", "axes", "batch_axis", "time_axis", "gather_axis", "quantize_axis", "scan_input_axes", "perm", "batch_dims")
)
_Operands = Sequence[Any]


class _Axis(NamedTuple):
    """What the limits of an axis depend on.

    Attributes:
      operands, attributes: those of its node.
      position, length: its position in the list that an attribute or an operand holds, and the length of that list.
    """

    operands: _Operands
    attributes: dict[str, Any]
    position: int
    length: int


def check(node: Node, entry: Converter, operands: _Operands) -> None:
    """Checks the attributes and the static operands that are called `NAMES`, before a node is computed.

    Raises:
      ModelError: an axis that is out of range.
    """
    names = {entry.operand(position) for position in range(len(operands))} & NAMES
    if NAMES.isdisjoint(entry.attributes) and not names:
        return
    attributes, _ = registry.attributes(node, entry)
    sources = [("attribute", name, attributes[name]) for name in sorted(NAMES & attributes.keys())]
    for name in sorted(names):
        value = operands[entry.position(name)]
        if isinstance(value, np.ndarray):
            sources.append(("operand", name, list(sizes(value)) if value.ndim else sizes(value)[0]))
    limits = _LIMITS.get((node.domain, node.operator), _first_operand)
    for source, name, value in sources:
        values = value if isinstance(value, list) else [] if value is None else [value]
        for position, axis in enumerate(values):
            allowed = limits(_Axis(operands=operands, attributes=attributes, position=position, length=len(values)))
            if allowed is not None:
                first, last = allowed
                require(axis, first, last, f"its {source} {name} is {value}", one_of_several=len(values) > 1)


def require(axis: int, first: int, last: int, statement: str, one_of_several: bool = False) -> None:
    """Checks that `axis` is in the range from `first` to `last`.

    Args:
      statement: the beginning of the message, such as "its attribute axis is 3".
      one_of_several: whether `statement` is about a list, so that the message has to say which axis is wrong.

    Raises:
      ModelError: an axis that is out of range.
    """
    if first > last:
        raise ModelError(f"{statement}, but there are no dimensions")
    if not first <= axis <= last:
        which = f"of which {axis}" if one_of_several else "which"
        raise ModelError(f"{statement}, {which} is not in the range from {first} to {last}")


def axis_bounds(rank: int) -> tuple[int, int]:
    """The first and the last axis of a tensor, where negative axes count from the end."""
    return -rank, rank - 1


def _first_operand(axis: _Axis) -> tuple[int, int]:
    return axis_bounds(axis.operands[0].ndim)


def _scan_input(axis: _Axis) -> tuple[int, int]:
    scanned = axis.operands[len(axis.operands) - axis.attributes["num_scan_inputs"] :]
    return axis_bounds(scanned[axis.position].ndim)


def _sequence_element(axis: _Axis) -> tuple[int, int] | None:
    elements = axis.operands[0]
    return axis_bounds(elements[0].ndim + bool(axis.attributes["new_axis"])) if elements else None


def _scale(axis: _Axis) -> tuple[int, int] | None:
    """A single scale has no axis, whatever the attribute says."""
    scale = axis.operands[1]
    return None if scale.size == 1 and scale.ndim <= 1 else _first_operand(axis)


_LIMITS: dict[tuple[str, str], Callable[[_Axis], tuple[int, int] | None]] = {
    (DEFAULT_DOMAIN, "ConcatFromSequence"): _sequence_element,
    # The last dimension holds the real and the imaginary part.
    (DEFAULT_DOMAIN, "DFT"): lambda axis: (-axis.operands[0].ndim, axis.operands[0].ndim - 2),
    (DEFAULT_DOMAIN, "Flatten"): lambda axis: (-axis.operands[0].ndim, axis.operands[0].ndim),
    (DEFAULT_DOMAIN, "GatherND"): lambda axis: (0, min(operand.ndim for operand in axis.operands) - 1),
    (DEFAULT_DOMAIN, "OneHot"): lambda axis: axis_bounds(axis.operands[0].ndim + 1),
    (DEFAULT_DOMAIN, "ReverseSequence"): lambda axis: (0, 1),
    (DEFAULT_DOMAIN, "Scan"): _scan_input,
    # The first dimension is the batch.
    (DEFAULT_DOMAIN, "TensorScatter"): lambda axis: (1 - axis.operands[0].ndim, axis.operands[0].ndim - 1),
    (DEFAULT_DOMAIN, "Transpose"): lambda axis: (0, axis.operands[0].ndim - 1),
    (DEFAULT_DOMAIN, "Unsqueeze"): lambda axis: axis_bounds(axis.operands[0].ndim + axis.length),
    (MICROSOFT, "QLinearConcat"): lambda axis: axis_bounds(axis.operands[2].ndim),
    (JQUANT, "quantized_linear_concat"): lambda axis: axis_bounds(axis.operands[2].ndim),
    **{(domain, name): _scale for domain in ("", MICROSOFT) for name in ("QuantizeLinear", "DequantizeLinear")},
}
