"""Reads the communication between devices from the text of a compiled program."""

import math
import re
from typing import NamedTuple

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all", "collective-broadcast")
_OPERATION = re.compile(rf" = (?P<types>\(.*?\)|\S+) (?P<kind>{'|'.join(_KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")


class Collective(NamedTuple):
    """A collective operation.

    Attributes:
      kind: its name in HLO, such as "all-reduce".
      types: the HLO types of its arrays' elements.
      elements: the number of elements of its arrays on one device.
    """

    kind: str
    types: set[str]
    elements: int


def collectives(program: str) -> list[Collective]:
    """The collective operations in the text of a compiled program, in order."""
    operations = []
    for operation in _OPERATION.finditer(program):
        arrays = _ARRAY.findall(operation["types"])
        elements = sum(math.prod(int(size) for size in sizes.split(",") if size) for _, sizes in arrays)
        operations.append(Collective(operation["kind"], {dtype for dtype, _ in arrays}, elements))
    return operations
