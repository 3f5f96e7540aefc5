"""Finds axes that a tensor does not have: NumPy and JAX take some modulo the rank, and refuse others without a name."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jquant.errors import ModelError
from jquant.onnx import registry
from jquant.onnx.graph import DEFAULT_DOMAIN, JQUANT, MICROSOFT, Node
from jquant.onnx.registry import Converter
from jquant.onnx.values import sizes

NAMES = frozenset(
    ("axis", "axes", "batch_axis", "time_axis", "gather_axis", "quantize_axis", "scan_input_axes", "perm", "batch_dims")
)
_Operands = Sequence[Any]


class _Given(NamedTuple):
    """What limits an axis: it is number `place` among those, `among` in all, that an attribute or an operand lists."""

    operands: _Operands
    attributes: dict[str, Any]
    place: int
    among: int


def check(node: Node, entry: Converter, operands: _Operands) -> None:
    """Called before a node is computed. `NAMES` are the attributes and the operands that are looked at.

    Raises:
      ModelError: one of them names an axis that there is not.
    """
    named = {entry.operand(place) for place in range(len(operands))} & NAMES
    if NAMES.isdisjoint(entry.attributes) and not named:
        return
    attributes, _ = registry.arguments(node, entry)
    found = [("attribute", name, attributes[name]) for name in sorted(NAMES & attributes.keys())]
    for name in sorted(named):
        value = operands[entry.position(name)]
        if isinstance(value, np.ndarray):
            found.append(("operand", name, list(sizes(value)) if value.ndim else sizes(value)[0]))
    for kind, name, value in found:
        values = value if isinstance(value, list) else [] if value is None else [value]
        for place, axis in enumerate(values):
            limits = _LIMITS.get((node.domain, node.operator), _of_first)
            allowed = limits(_Given(operands, attributes, place, len(values)))
            if allowed is not None:
                require(axis, *allowed, f"its {kind} {name} is {value}", len(values) > 1)


def require(axis: int, first: int, last: int, given: str, one_of_several: bool = False) -> None:
    """
    Raises:
      ModelError: `axis` is not among those from `first` to `last`.
    """
    if first > last:
        raise ModelError(f"{given}, but there are no dimensions")
    if not first <= axis <= last:
        which = f"of which {axis}" if one_of_several else "which"
        raise ModelError(f"{given}, {which} is not in the range from {first} to {last}")


def of_rank(rank: int) -> tuple[int, int]:
    return -rank, rank - 1


def _of_first(given: _Given) -> tuple[int, int]:
    return of_rank(given.operands[0].ndim)


def _of_inputs_to_scan(given: _Given) -> tuple[int, int]:
    scanned = given.operands[len(given.operands) - given.attributes["num_scan_inputs"] :]
    return of_rank(scanned[given.place].ndim)


def _of_sequence(given: _Given) -> tuple[int, int] | None:
    elements = given.operands[0]
    return of_rank(elements[0].ndim + bool(given.attributes["new_axis"])) if elements else None


def _of_scales(given: _Given) -> tuple[int, int] | None:
    """A single scale has no axis, whatever the attribute says."""
    scale = given.operands[1]
    return None if scale.size == 1 and scale.ndim <= 1 else _of_first(given)


_LIMITS: dict[tuple[str, str], Callable[[_Given], tuple[int, int] | None]] = {
    (DEFAULT_DOMAIN, "ConcatFromSequence"): _of_sequence,
    (DEFAULT_DOMAIN, "DFT"): lambda given: (-given.operands[0].ndim, given.operands[0].ndim - 2),  # the last holds two parts
    (DEFAULT_DOMAIN, "Flatten"): lambda given: (-given.operands[0].ndim, given.operands[0].ndim),
    (DEFAULT_DOMAIN, "GatherND"): lambda given: (0, min(each.ndim for each in given.operands) - 1),
    (DEFAULT_DOMAIN, "OneHot"): lambda given: of_rank(given.operands[0].ndim + 1),
    (DEFAULT_DOMAIN, "ReverseSequence"): lambda given: (0, 1),
    (DEFAULT_DOMAIN, "Scan"): _of_inputs_to_scan,
    # The first dimension is the batch.
    (DEFAULT_DOMAIN, "TensorScatter"): lambda given: (1 - given.operands[0].ndim, given.operands[0].ndim - 1),
    (DEFAULT_DOMAIN, "Transpose"): lambda given: (0, given.operands[0].ndim - 1),
    (DEFAULT_DOMAIN, "Unsqueeze"): lambda given: of_rank(given.operands[0].ndim + given.among),
    (MICROSOFT, "QLinearConcat"): lambda given: of_rank(given.operands[2].ndim),
    (JQUANT, "quantized_linear_concat"): lambda given: of_rank(given.operands[2].ndim),
    **{(domain, name): _of_scales for domain in ("", MICROSOFT) for name in ("QuantizeLinear", "DequantizeLinear")},
}
