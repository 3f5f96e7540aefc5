"""What a compiled program moves: the bytes that its instructions read from memory and write to it, as its text has them.

An instruction of XLA's optimised program reads its operands from memory and writes its result there; what it computes in
between, as a fusion does, stays in registers. So an operator that is one loop moves its arguments and its results, and no
other byte.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from jquant.cases import clip, linear, nonlinear, quantized, tensorflow

ELEMENTWISE = {
    name: case for family in (linear, quantized, clip, nonlinear, tensorflow) for name, case in family.CASES.items()
}
# Those that reduce their argument first, and read it again; or reduce it in two ways, along different dimensions.
READ_TWICE = {
    "dynamic_quantize_linear",
    "quantized_linear_softmax",
    "quantize_down_and_shrink_range",
    "requantization_range_per_channel",
}

ELEMENTS = 2**22  # about so many in each program
PARTIAL_SUMS = 2**16  # bytes that reductions of large tensors leave to another one
SMALL = 2**12  # bytes: scalars, tables of 256 float32, parameters of channels


class Traffic(NamedTuple):
    """Bytes, without those of small arrays.

    Attributes:
      moved: read and written by all instructions.
      arguments: of the program.
      results: of the program.
      instructions: those that move anything, for people to read.
    """

    moved: int
    arguments: int
    results: int
    instructions: list[str]

    @property
    def least(self) -> int:
        return self.arguments + self.results

    @property
    def ratio(self) -> float:
        return self.moved / self.least if self.least else 1.0


class Instruction(NamedTuple):
    name: str
    type: str
    opcode: str
    operands: list[str]
    attributes: str


def of(program: str, small: int = SMALL) -> Traffic:
    """Of ``compiled.as_text()``; arrays of fewer than `small` bytes do not count."""
    entry, computations = _computations(program)
    moves = [*_moves(computations, entry, 1, small)]
    arguments = sum(_bytes(one.type, small) for one in computations[entry] if one.opcode == "parameter")
    results = _bytes(computations[entry][-1].type, small)
    return Traffic(sum(moved for moved, _ in moves), arguments, results, [text for moved, text in moves if moved])


_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\) -> .*\{$")
_CALLED = re.compile(r"\b(?:to_apply|body|calls|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{(.*?)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_MOVES_NOTHING = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "opt-barrier",
}
_CALLS = {"call", "while", "conditional", "async-start"}


def _computations(program: str) -> tuple[str, dict[str, list[Instruction]]]:
    """The name of the entry, and all computations by their names, each with its root at the end."""
    entry, current, found = "", "", {}
    for line in re.sub(r"/\*.*?\*/", "", program).splitlines():
        if header := _COMPUTATION.match(line):
            current = header[2]
            found[current] = []
            entry = current if header[1] else entry
        elif line == "}":
            found[current].sort(key=lambda pair: pair[0])
            found[current] = [one for _, one in found[current]]
        elif " = " in line and current:
            found[current].append((line.lstrip().startswith("ROOT "), _instruction(line)))
    return entry, found


def _instruction(line: str) -> Instruction:
    name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
    type_, rest = _first(rest)
    opcode, _, rest = rest.partition("(")
    operands, attributes = _first(f"({rest}")
    return Instruction(name.lstrip("%"), type_, opcode, re.findall(r"%([\w.-]+)", operands), attributes)


def _first(text: str) -> tuple[str, str]:
    """What stands before the first space outside of parentheses, or the pair of parentheses that the text begins with."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth and (character == " " or (character == ")" and text.startswith("("))):
            return text[: index + 1].strip(), text[index + 1 :].strip()
    return text, ""


def _moves(computations: dict[str, list[Instruction]], name: str, times: int, small: int) -> Iterator[tuple[int, str]]:
    """What each instruction of a computation moves, if that is run so many times, and its text."""
    types = {one.name: one.type for one in computations[name]}
    for one in computations[name]:
        if one.opcode in _CALLS:
            trips = _TRIPS.search(one.attributes)
            called = _CALLED.findall(one.attributes)
            called += [
                branch.strip().lstrip("%") for each in _BRANCHES.findall(one.attributes) for branch in each.split(",")
            ]
            for each in called:
                yield from _moves(computations, each, times * int(trips[1] if trips else 1), small)
        elif one.opcode not in _MOVES_NOTHING and not _only_fetches(one):
            read = sum(_bytes(types[operand], small) for operand in dict.fromkeys(one.operands))
            written = _bytes(one.type, small)
            yield times * (read + written), f"{times} x {one.opcode} {one.name}: {read} + {written}"


def _only_fetches(one: Instruction) -> bool:
    """Whether it brings an array next to the processor of a TPU, for another instruction, which counts."""
    return one.opcode.endswith(("-start", "-done")) or 'custom_call_target="ConcatBitcast"' in one.attributes


def _bytes(type_: str, small: int) -> int:
    """Of the arrays in a type."""
    return sum(
        size
        for dtype, shape, layout in _ARRAY.findall(type_)
        if (size := _bits(dtype, layout) * math.prod(_padded(_integers(shape), layout)) // 8) >= small
    )


def _padded(sizes: list[int], layout: str) -> list[int]:
    """What the sizes take in memory: on TPUs, those of the most minor dimensions are multiples of a tile's."""
    tile = re.search(r"T\(([\d,]+)\)", layout)
    minor_to_major = _integers(layout.partition(":")[0])
    for dimension, size in zip(minor_to_major, reversed(_integers(tile[1] if tile else "")), strict=False):
        sizes[dimension] = -(-sizes[dimension] // size) * size
    return sizes


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _bits(dtype: str, layout: str) -> int:
    """Of an element; integers of fewer bits than a byte have one, unless their layout says otherwise."""
    if packed := re.search(r"E\((\d+)\)", layout):
        return int(packed[1])
    digits = re.search(r"\d+", dtype)
    return max(8, int(digits[0])) if digits else 8


def assert_moved_once(name: str, compile: Callable[[Callable, tuple], str]) -> None:
    """That a program of the operator alone reads each tensor once, or twice after a reduction, and writes its result once.

    `compile` makes the text of a program from a function and the shapes of its arguments.
    """
    found = of(compile(ELEMENTWISE[name].function, _shapes(name)), PARTIAL_SUMS)
    reads = 1 + (name.partition(",")[0] in READ_TWICE)
    assert found.least <= found.moved <= reads * found.arguments + found.results, found.instructions


def _shapes(name: str) -> tuple:
    case = ELEMENTWISE[name]
    shapes = case.shapes(case.rows_of(ELEMENTS))
    if name != "dynamic_quantize_linear, rows":
        return shapes
    (x,) = shapes  # long rows, beside which their scales and zero points are small
    return (jax.ShapeDtypeStruct((ELEMENTS // 4096, 4096), x.dtype),)
