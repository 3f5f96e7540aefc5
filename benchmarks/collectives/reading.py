"""Reads the operations between devices from the text of a compiled program."""

import math
import re
from collections import Counter
from typing import NamedTuple


class Collective(NamedTuple):
    """An operation between devices, in a compiled program.

    Attributes:
      kind: all-reduce, all-gather, reduce-scatter, all-to-all or collective-permute.
      dtype: XLA's name: s8, bf16, ...
      shape: of the array that each device of the group has in the end (or at the start, for a reduce-scatter).
      group: how many devices take part together.
      times: how often one run of the program performs it.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    group: int
    times: int

    def bytes_sent(self) -> float:
        """The bytes that each device sends when the parts are passed around in a ring, which is the minimum."""
        parts = 1 if self.kind == "collective-permute" else (self.group - 1) / self.group
        passes = 2 if self.kind == "all-reduce" else 1  # a reduce-scatter, and an all-gather
        return passes * parts * math.prod(self.shape) * element_bytes(self.dtype) * self.times

    def __str__(self) -> str:
        array = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        return f"{self.kind} {array}" + (f" x {self.times}" if self.times > 1 else "")


def element_bytes(dtype: str) -> float:
    return 1 if dtype == "pred" else int(re.search(r"\d+", dtype)[0]) / 8


_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_CALL = re.compile(r"(calls|body|to_apply|branch_computations)=\{?%([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_COLLECTIVE = re.compile(
    r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\((.*?)\), (.*)"
)
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")


def read(program: str) -> list[Collective]:
    """The collectives of a compiled program, ``compiled.as_text()``.

    Each is counted once, although XLA:TPU writes one that overlaps with a product into each fusion that it spans, times the
    iterations of the loop that contains it. On a TPU, a reduce-scatter is a fusion around an all-reduce.

    Raises:
      ValueError: a collective in a loop with an unknown number of iterations, or replica groups in an unknown notation.
    """
    callers: dict[str, tuple[str, str]] = {}
    matches: dict[tuple, tuple[str, re.Match]] = {}
    computation = ""
    for line in program.splitlines():
        if header := _COMPUTATION.match(line):
            computation = header[1]
        for attribute, callee in _CALL.findall(line):
            callers[callee] = computation, line if attribute == "body" else ""
        if match := _COLLECTIVE.search(line):
            channel = re.search(r"channel_id=(\d+)", match[5])
            matches.setdefault((match[2], channel[1] if channel else line), (computation, match))

    def times(computation: str) -> int:
        if computation not in callers:
            return 1
        caller, loop = callers[computation]
        trips = _TRIPS.search(loop)
        if loop and not trips:
            raise ValueError(f"a loop with an unknown number of iterations: {loop}")
        return (int(trips[1]) if trips else 1) * times(caller)

    counts: Counter[Collective] = Counter()
    for computation, match in matches.values():
        result_type, kind, start, _, attributes = match.groups()
        arrays = [(dtype, shape) for dtype, shape in _ARRAY.findall(result_type) if shape]
        if start and kind != "all-reduce":
            arrays = arrays[len(arrays) // 2 :]  # the operands come first
        group = 2 if kind == "collective-permute" else group_size(attributes)
        is_fused_scatter = kind == "all-reduce" and computation.startswith("all-reduce-scatter")
        for dtype, sizes in arrays:
            shape = tuple(map(int, sizes.split(",")))
            if kind == "reduce-scatter":
                shape = (group, *shape)
            name = "reduce-scatter" if is_fused_scatter else kind
            counts[Collective(name, dtype, shape, group, times=1)] += times(computation)
    return [collective._replace(times=count) for collective, count in counts.items()]


def group_size(attributes: str) -> int:
    """The size of the groups, which are spelled out, or counted as (groups, size), or are axes of a mesh."""
    if spelled := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
        return spelled[1].count(",") + 1
    if counted := re.search(r"replica_groups=\[\d+,(\d+)\]", attributes):
        return int(counted[1])
    if named := re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\S+)? \{([^:]*?)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
    raise ValueError(f"replica groups in an unknown notation: {attributes}")
