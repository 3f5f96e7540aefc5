"""Which values have to be known while a program is traced: those that its shapes depend on, and what these come from."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from jquant.onnx import registry
from jquant.onnx.graph import Graph, Node

# What needs nothing of what it is given but the shape, or that there is something, or how many there are.
_SHAPES_ALONE = frozenset({"Shape", "Size", "SequenceLength", "OptionalHasElement"})


class Analysis:
    """Follows static operands back to where they come from.

    Args:
      graph: whole, with all names unique.
      known: names of what is an array of the file, or given by the caller as a constant.

    Attributes:
      static: the names of all values that have to be NumPy arrays.
      problems: of each that cannot be one, a sentence.
    """

    def __init__(self, graph: Graph, known: Iterable[str]):
        self.static: set[str] = set()
        self.problems: list[str] = []
        self._known = frozenset(known)
        self._producers: dict[str, tuple[Node, int]] = {}
        self._inputs = {value.name for value in graph.inputs}
        for node in graph.walk():
            self._producers |= {name: (node, index) for index, name in enumerate(node.outputs) if name}
        for node in graph.walk():
            entry = registry.find(node)
            if entry is None:
                continue
            for position, name in enumerate(node.inputs):
                operand = entry.operand(position)
                if operand in entry.static:
                    self._require(name, f"{node.title}: {operand}")
                elif operand in entry.prefers_static and self._origin(name) is None:
                    self._require(name, "")

    def _require(self, name: str, reader: str) -> None:
        """Marks `name` and all that it is computed from."""
        origin = self._origin(name)
        if origin is not None:
            self.problems.append(f"{reader} is {name!r}, which depends on {origin}")
            return
        self.static.update(self._ancestors(name))

    def _origin(self, name: str) -> str | None:
        """What keeps `name` from being known, or None."""
        for each in self._ancestors(name):
            if each in self._known:
                continue
            if each in self._inputs:
                return f"the input {each!r}: fix it by constants={{{each!r}: ...}}"
            if each not in self._producers:
                return f"{each!r}, which a loop changes"
            node, _ = self._producers[each]
            entry = registry.find(node)
            if node.operator not in _SHAPES_ALONE and node.operator != "If" and (entry is None or not entry.folds):
                return f"the data of {node.title}"
        return None

    def _ancestors(self, name: str) -> dict[str, None]:
        """`name` and everything that has to be known for it, the nearest first."""
        found: dict[str, None] = {}
        waiting = [name]
        while waiting:
            each = waiting.pop(0)
            if not each or each in found:
                continue
            found[each] = None
            if each in self._known or each not in self._producers:
                continue
            node, index = self._producers[each]
            if node.operator in _SHAPES_ALONE:
                continue
            waiting += node.inputs
            waiting += [branch.outputs[index].name for branch in node.subgraphs.values() if index < len(branch.outputs)]
        return found


class Packing(NamedTuple):
    """How a matrix is packed: with this zero point, by name, and whether it is transposed first."""

    zero_point: str | None
    transposed: bool


def packed_matrices(graph: Graph, static: Iterable[str]) -> Mapping[str, Packing]:
    """Constants that are nothing but a matrix of integers, the same one, in products.

    Their zero points have to be constants too, so that they are packed together, once.
    """
    constants = {name: array for each in graph.scopes() for name, array in {**each.initializers, **each.constants}.items()}
    roles: dict[str, set[Packing | None]] = {}
    for node in graph.walk():
        entry = registry.find(node)
        for position, name in enumerate(node.inputs):
            operand = entry.operand(position) if entry and entry.operands else ""
            packing = _packing(node, entry, operand) if entry and operand in entry.packs else None
            roles.setdefault(name, set()).add(packing)
    outputs = {value.name for each in graph.scopes() for value in each.outputs}
    found = {}
    for name, packings in roles.items():
        if name not in constants or name in static or name in outputs or len(packings) != 1 or None in packings:
            continue
        (packing,) = packings
        assert packing is not None
        if packing.zero_point and packing.zero_point not in constants:
            continue
        if _is_packable(constants[name], packing.transposed, constants.get(packing.zero_point or "")):
            found[name] = packing
    return found


def _packing(node: Node, entry: registry.Converter, operand: str) -> Packing:
    place = entry.position(entry.packs[operand])
    zero_point = node.inputs[place] if place < len(node.inputs) else ""
    return Packing(zero_point or None, bool(entry.transposed_by and node.attributes.get(entry.transposed_by, 0)))


def _is_packable(matrix: np.ndarray, transposed: bool, zero_point: np.ndarray | None) -> bool:
    """Whether `pack_matrix` takes it: some elements, and a zero point of the whole matrix or of each column."""
    if matrix.dtype not in (np.int8, np.uint8) or not 2 <= matrix.ndim <= 8 or not matrix.size:
        return False
    columns = matrix.shape[-2 if transposed else -1]
    if zero_point is None:
        return True
    return zero_point.dtype == matrix.dtype and (
        zero_point.size == 1 or zero_point.shape[-1:] == (columns,) == (zero_point.size,)
    )
