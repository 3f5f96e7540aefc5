"""What a compiled program communicates, read from its text."""

import math
import re
from typing import NamedTuple

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all", "collective-broadcast")
_OPERATION = re.compile(rf" = (?P<types>\(.*?\)|\S+) (?P<kind>{'|'.join(KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")


class Collective(NamedTuple):
    """One operation: its kind, and the dtype and sizes of each array that leaves it, of one device."""

    kind: str
    arrays: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def elements(self) -> int:
        return sum(math.prod(sizes) for _, sizes in self.arrays)


def collectives(program: str) -> list[Collective]:
    """Those of a compiled program, in its order."""
    found = []
    for line in program.splitlines():
        if operation := _OPERATION.search(line):
            arrays = _ARRAY.findall(operation["types"])
            sizes = tuple((dtype, tuple(int(size) for size in text.split(",") if size)) for dtype, text in arrays)
            found.append(Collective(operation["kind"], sizes))
    return found
