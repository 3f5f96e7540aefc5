"""Reads from the text of a compiled program how many bytes its instructions read from memory and write to it.

An instruction of XLA's optimised program reads its operands from memory and writes its result there; what a fusion computes
in between stays in registers. So an operator that compiles to one loop moves the bytes of its arguments and its results, and
no others.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

MIN_BYTES = 2**12  # smaller arrays do not count: scalars, tables of 256 float32, parameters of channels


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


def read(program: str, min_bytes: int = MIN_BYTES) -> Traffic:
    """The traffic of a program, ``compiled.as_text()``; arrays of fewer than `min_bytes` do not count."""
    entry, computations = _computations(program)
    moves = [*_moves(computations, entry, 1, min_bytes)]
    parameters = [instruction for instruction in computations[entry] if instruction.opcode == "parameter"]
    return Traffic(
        moved=sum(moved for moved, _ in moves),
        arguments=sum(_bytes(parameter.type, min_bytes) for parameter in parameters),
        results=_bytes(computations[entry][-1].type, min_bytes),
        instructions=[text for moved, text in moves if moved],
    )


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
    entry, name = "", ""
    computations: dict[str, list[Instruction]] = {}
    roots: dict[str, Instruction] = {}
    for line in re.sub(r"/\*.*?\*/", "", program).splitlines():
        if header := _COMPUTATION.match(line):
            name = header[2]
            computations[name] = []
            entry = name if header[1] else entry
        elif line == "}":
            name = ""
        elif " = " in line and name:
            instruction = _instruction(line)
            if line.lstrip().startswith("ROOT "):
                roots[name] = instruction
            else:
                computations[name].append(instruction)
    for name, root in roots.items():
        computations[name].append(root)
    return entry, computations


def _instruction(line: str) -> Instruction:
    name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
    type_, rest = _split_first(rest)
    opcode, _, rest = rest.partition("(")
    operands, attributes = _split_first(f"({rest}")
    return Instruction(name.lstrip("%"), type_, opcode, re.findall(r"%([\w.-]+)", operands), attributes)


def _split_first(text: str) -> tuple[str, str]:
    """Splits off the first word, or the parentheses that the text begins with; spaces inside parentheses do not count."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth and (character == " " or (character == ")" and text.startswith("("))):
            return text[: index + 1].strip(), text[index + 1 :].strip()
    return text, ""


def _moves(computations: dict[str, list[Instruction]], name: str, times: int, min_bytes: int) -> Iterator[tuple[int, str]]:
    """The bytes that each instruction of a computation moves when it runs so many times, and its text."""
    types = {instruction.name: instruction.type for instruction in computations[name]}
    for instruction in computations[name]:
        opcode, attributes = instruction.opcode, instruction.attributes
        if opcode in _CALLS:
            trips = _TRIPS.search(attributes)
            branches = [branch for names in _BRANCHES.findall(attributes) for branch in names.split(",")]
            for callee in _CALLED.findall(attributes) + [branch.strip().lstrip("%") for branch in branches]:
                yield from _moves(computations, callee, times * int(trips[1] if trips else 1), min_bytes)
        elif opcode not in _MOVES_NOTHING and not _is_prefetch(instruction):
            read = sum(_bytes(types[operand], min_bytes) for operand in dict.fromkeys(instruction.operands))
            written = _bytes(instruction.type, min_bytes)
            yield times * (read + written), f"{times} x {opcode} {instruction.name}: {read} + {written}"


def _is_prefetch(instruction: Instruction) -> bool:
    """Whether an instruction prefetches an array into a TPU's on-chip memory; the one that reads it there counts."""
    is_concatenation = 'custom_call_target="ConcatBitcast"' in instruction.attributes
    return instruction.opcode.endswith(("-start", "-done")) or is_concatenation


def _bytes(type_: str, min_bytes: int) -> int:
    """Of the arrays in a type."""
    sizes = (
        _bits(dtype, layout) * math.prod(_padded(_integers(shape), layout)) // 8
        for dtype, shape, layout in _ARRAY.findall(type_)
    )
    return sum(size for size in sizes if size >= min_bytes)


def _padded(sizes: list[int], layout: str) -> list[int]:
    """The sizes in memory: on TPUs, those of the most minor dimensions are multiples of a tile's."""
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
