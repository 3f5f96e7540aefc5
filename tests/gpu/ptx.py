"""The PTX that XLA makes for a GPU, compiled without one, and the float instructions in it that are not exact.

ptxas, which compiles PTX for the chip, may merge or reorder only arithmetic that names no rounding: `mul.rn.f32` and
`add.rn.f32` stay as they are, `mul.f32` and `add.f32` may become one `fma`.
"""

import importlib.metadata
import pathlib
import re
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import chips


def compile(function: Callable, *arguments: Any) -> list["Kernel"]:
    """The kernels of ``jax.jit(function)`` on an H200, for arguments of these shapes and dtypes, or trees of them."""
    return parse(compile_for("h200", function, *arguments)[1])


def compile_for(gpu: str, function: Callable, *arguments: Any, **options: Any) -> tuple[jax.stages.Compiled, str]:
    """``jax.jit(function)`` compiled for a GPU of `chips.GPUS` with XLA's `options`, and its PTX."""
    with tempfile.TemporaryDirectory() as folder:
        # jax 0.10 dumps PTX by default; 0.12 only if it is named.
        dump = {"xla_dump_to": folder, "xla_dump_emitter_re": "ptx"}
        program = chips.compile(gpu, function, *arguments, **dump, **options)
        return program, "".join(file.read_text() for file in pathlib.Path(folder).glob("*.ptx"))


def spilled_bytes(text: str) -> int:
    """How many bytes the kernels in the PTX of a program spill out of registers, by the report of ptxas."""
    files = importlib.metadata.files("nvidia-cuda-nvcc") or []
    (ptxas,) = (file.locate() for file in files if file.name == "ptxas")
    report = ""
    for module in re.split(r"^(?=\.version )", text, flags=re.MULTILINE)[1:]:
        target = re.findall(r"^\.target (\w+)", module, re.MULTILINE)[0]
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "module.ptx"
            source.write_text(module)
            command = [ptxas, "--verbose", "--gpu-name", target, "--output-file", source.with_suffix(".cubin"), source]
            report += subprocess.run(command, check=True, capture_output=True, text=True).stderr
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    assert spilled
    return sum(map(int, spilled))


class Instruction(NamedTuple):
    """``opcode results, operands``, each operand a register or an immediate."""

    text: str
    opcode: str
    results: list[str]
    operands: list[str]


_INSTRUCTION = re.compile(r"(?:@!?(?P<guard>%?\w+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<first>\{.*?\}|[^,]*),?(?P<rest>.*);")
_OPERAND = re.compile(r"%[\w.]+|0[fd][0-9A-F]+|0x[0-9A-F]+|-?\b\d+")
_NO_RESULT = ("st.", "bra", "ret", "call", "bar.", "griddepcontrol.")


def parse(text: str) -> list["Kernel"]:
    """The kernels, which begin and end with a brace at the margin."""
    bodies = re.findall(r"^\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    return [Kernel([_instruction(line) for line in _lines(body)]) for body in bodies]


def _lines(body: str) -> Iterator[str]:
    """The instructions. Triton writes several in a line, or one in several lines."""
    pending = ""
    for line in body.splitlines():
        line = line.split("//")[0].strip()
        if not pending and (line in ("", "{", "}") or line.startswith(".") or line.endswith(":")):
            continue  # scopes, directives and labels
        *instructions, pending = f"{pending} {line}".split(";")
        yield from (f"{instruction.strip()};" for instruction in instructions)
    if pending.strip():
        raise ValueError(f"this is no PTX instruction: {pending!r}")


def _instruction(line: str) -> Instruction:
    match = _INSTRUCTION.fullmatch(line)
    if match is None:
        raise ValueError(f"this is no PTX instruction: {line!r}")
    first, rest = (_OPERAND.findall(match[name]) for name in ("first", "rest"))
    guard = [match["guard"]] if match["guard"] else []
    if match["opcode"].startswith(_NO_RESULT):
        return Instruction(line, match["opcode"], [], guard + first + rest)
    return Instruction(line, match["opcode"], first, guard + rest)


class Kernel:
    """Instructions, and those that define and use each register. Registers that hold a constant are replaced by it."""

    def __init__(self, instructions: list[Instruction]):
        times = Counter(register for instruction in instructions for register in instruction.results)
        moves = {
            instruction.results[0]: instruction.operands[0]
            for instruction in instructions
            if instruction.opcode.startswith("mov.b") and instruction.operands
        }
        constants = {register: x for register, x in moves.items() if times[register] == 1 and not x.startswith("%")}
        self.instructions = [
            instruction._replace(operands=[constants.get(x, x) for x in instruction.operands])
            for instruction in instructions
        ]
        self._definitions, self._uses = defaultdict(list), defaultdict(list)
        for instruction in self.instructions:
            for register in instruction.results:
                self._definitions[register].append(instruction)
            for operand in dict.fromkeys(instruction.operands):
                self._uses[operand].append(instruction)

    def definition(self, register: str) -> Instruction:
        """The instruction that computes `register`; an empty one if there are several or none."""
        definitions = self._definitions[register]
        return definitions[0] if len(definitions) == 1 else Instruction("", "", [], [])

    def uses(self, instruction: Instruction) -> list[Instruction]:
        """The instructions that take its result."""
        return [use for register in instruction.results for use in self._uses[register]]


# ---------------------------------------------------------------------------------------------------------------------

_FLOAT_TYPE = re.compile(r"\.(b?f\d|tf\d|e\dm\d)")
_EXACT = re.compile(
    "|".join(
        [
            r"(add|sub|mul)\.rn\.(f32|b?f16)(x2)?|div\.rn\.f32",  # IEEE's, rounded once, half to even
            r"(abs|copysign|max|min|neg|selp|(max|min)\.NaN|setp\.\w+(\.and|\.or)?)\.(f32|b?f16)(x2)?",
            r"cvt\.rn\.f32\.[su](8|16|32)|cvt\.rzi\.[su](8|16|32)\.f32",  # from integers: half to even; to them: toward 0
            r"cvt\.(rni|rzi|rmi)\.f32\.f32",  # to an integral float: half to even, toward 0, down
            r"cvt\.f32\.b?f16|cvt\.rn\.b?f16(x2)?\.f32",
        ]
    )
)


def inexact(kernels: list[Kernel], divisors: tuple[np.floating, ...] = ()) -> list[str]:
    """The instructions whose result may differ from that of the formula, in order, for people to read.

    Division counts as exact if its result is only an approximation, which integer arithmetic then corrects. `divisors` are
    the constants that the program divides by, for which XLA may multiply with their reciprocals.
    """
    reciprocals = {_significand(1 / np.float32(divisor)) for divisor in divisors} - {0}
    return [
        text
        for kernel in kernels
        for instruction in kernel.instructions
        for text in _inexact(kernel, instruction, reciprocals)
    ]


def _significand(x: np.float32) -> int:
    return int(x.view(np.int32)) & 0x7FFFFF


def _inexact(kernel: Kernel, instruction: Instruction, reciprocals: set[int]) -> list[str]:
    if instruction.opcode == "div.full.f32" and instruction.operands[0] == "0f00000000":
        return []  # 0 or NaN
    if instruction.opcode == "div.full.f32" or _multiplies_by_reciprocal(instruction, reciprocals):
        return [
            f"{instruction.text} -> {use.text}"
            for use in kernel.uses(instruction)
            if not _corrects(kernel, use, instruction)
        ]
    if instruction.opcode == "add.rz.f32" and _rounds_half_away(kernel, instruction):
        return []
    is_float = _FLOAT_TYPE.search(instruction.opcode) or instruction.opcode.startswith("call")
    return [instruction.text] if is_float and not _EXACT.fullmatch(instruction.opcode) else []


def _multiplies_by_reciprocal(instruction: Instruction, reciprocals: set[int]) -> bool:
    constants = [int(x[2:], 16) for x in instruction.operands if x.startswith("0f")]
    return instruction.opcode == "mul.rn.f32" and any(bits & 0x7FFFFF in reciprocals for bits in constants)


def _rounds_half_away(kernel: Kernel, addition: Instruction) -> bool:
    """``trunc(x + copysign(0.5, x))``, the sum truncated as well: exact, and rounded half away from zero."""
    x, half = addition.operands
    copysign = kernel.definition(half)
    is_half = copysign.opcode == "copysign.f32" and copysign.operands == [x, "0f3F000000"]
    return is_half and all(use.opcode == "cvt.rzi.f32.f32" for use in kernel.uses(addition))


def _corrects(kernel: Kernel, use: Instruction, division: Instruction) -> bool:
    """Whether `use` corrects an approximate quotient, as `exact.corrected_quotient` does."""
    (quotient,) = division.results
    if use.opcode == "cvt.rzi.s32.f32":
        return _has_remainder(kernel, use)
    if use.opcode.startswith("setp.") and use.operands[1:] in ([_LOWEST], [_BEYOND]):  # XLA's saturating conversion
        return all(_saturates(kernel, x) or _limits_below(x) for x in kernel.uses(use))
    if use.opcode == "setp.nan.f32":
        return all(_saturates(kernel, x) for x in kernel.uses(use))
    if _limits_below(use):
        return all(x.opcode == "cvt.rzi.s32.f32" and _has_remainder(kernel, x) for x in kernel.uses(use))
    if use.opcode == "selp.f32":  # the special cases
        finite, special, is_normal = use.operands
        return finite != quotient == special and _is_normal(kernel, is_normal)
    return False


def _has_remainder(kernel: Kernel, integer: Instruction) -> bool:
    """Whether the integer, once it is saturated, is multiplied for a remainder: ``numerator - integer * divisor``."""
    uses = kernel.uses(integer)
    return any(
        x.opcode in ("mul.lo.s32", "mad.lo.s32") or (_saturates(kernel, x) and _has_remainder(kernel, x)) for x in uses
    )


_LOWEST, _BEYOND = "0fCF000000", "0f4F000000"  # -2**31 and 2**31


def _limits_below(instruction: Instruction) -> bool:
    return instruction.opcode == "selp.f32" and instruction.operands[0] == _LOWEST


def _saturates(kernel: Kernel, instruction: Instruction) -> bool:
    """Whether this replaces a converted number by the largest integer, or that of a NaN by 0."""
    if instruction.opcode != "selp.b32":
        return False
    replacement, _, predicate = instruction.operands
    return replacement == "2147483647" or (replacement == "0" and kernel.definition(predicate).opcode == "setp.nan.f32")


def _is_normal(kernel: Kernel, predicate: str) -> bool:
    """Whether `predicate` is false only where an exponent is 0 or 255: for zeros, infinities and NaN."""
    test = kernel.definition(predicate)
    if test.opcode == "and.pred":
        return all(_is_normal(kernel, operand) for operand in test.operands)
    if test.opcode == "setp.ne.b16":  # of a boolean from memory, which another kernel has computed
        return _is_stored(kernel, test.operands[0])
    if test.opcode == "setp.lt.u32":  # both at once: exponent - 1 < 254, unsigned
        difference = kernel.definition(test.operands[0])
        exponent, limit = difference.operands[0], test.operands[1]
        return [difference.opcode, difference.operands[1], limit] == ["add.s32", "-1", "254"] and (
            _is_exponent(kernel, exponent) or kernel.definition(exponent).opcode.startswith("ld.global")
        )
    if test.opcode not in ("setp.ne.b32", "setp.ne.and.b32"):
        return False
    exponent, limit, *others = test.operands
    return _is_exponent(kernel, exponent) and limit in ("0", "255") and all(_is_normal(kernel, x) for x in others)


def _is_stored(kernel: Kernel, register: str) -> bool:
    """Whether a register is a boolean read from memory."""
    bit = kernel.definition(register)
    return bit.opcode == "and.b16" and bit.operands[1] == "1" and kernel.definition(bit.operands[0]).opcode.endswith(".b8")


def _is_exponent(kernel: Kernel, register: str) -> bool:
    """Whether a register is the biased exponent of a float32."""
    field = kernel.definition(register)
    if field.opcode == "shr.u32" and field.operands[1] == "23":  # of a number without a sign
        number = kernel.definition(field.operands[0])
        return number.opcode == "max.s32" and number.operands[1] == "0"
    if field.opcode == "bfe.u32":
        return field.operands[1:] == ["23", "8"]
    if field.opcode != "and.b32" or field.operands[1] != "255":
        return False
    shift = kernel.definition(field.operands[0])
    return shift.opcode == "shr.u32" and shift.operands[1] == "23"
