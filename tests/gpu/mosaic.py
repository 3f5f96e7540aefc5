"""Compiles Mosaic GPU kernels for an H200, to their PTX and the log of ptxas, and checks the float arithmetic."""

import os
import pathlib
import re
import tempfile
from typing import NamedTuple
from unittest import mock

import jax

from benchmarks import chips

from . import ptx


class Compiled(NamedTuple):
    """A kernel: its PTX, the same parsed, and the log of ptxas."""

    text: str
    kernel: ptx.Kernel
    log: str  # of ptxas


def tensor(dtype, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding.SingleDeviceSharding(chips.device("h200")))


def compile(product: jax.stages.Lowered) -> Compiled:
    """The one kernel of a program."""
    with tempfile.TemporaryDirectory() as folder:
        dump = {"MOSAIC_GPU_DUMP_TO": folder, "MOSAIC_GPU_DUMP_PTX": "1", "MOSAIC_GPU_DUMP_PTXAS": "1"}
        with mock.patch.dict(os.environ, dump):
            product.compile()
        (text,), (log,) = ([file.read_text() for file in pathlib.Path(folder).glob(f"*.{end}")] for end in ("ptx", "ptxas"))
    # Of inline assembly, only arithmetic is parsed: not what waits for barriers, multiplies matrices or unpacks integers.
    assembly = r"^\t// begin inline asm\n(.*?)^\t// end inline asm$"
    program = re.sub(assembly, lambda block: _arithmetic(block[1]), text, flags=re.MULTILINE | re.DOTALL)
    # Without the addresses of symbols.
    (kernel,) = ptx.parse(re.sub(r"^\tmov\.b64 \t%\w+, [A-Za-z_]\w*;$", "", program, flags=re.MULTILINE))
    return Compiled(text, kernel, log)


def _arithmetic(assembly: str) -> str:
    assembly = re.sub(r"^\t\.loc.*\n", "", assembly, flags=re.MULTILINE)
    return assembly if re.fullmatch(r"(mul|add|sub|fma)\.\S+ [^;]*;", assembly.strip()) else ""


# Mosaic GPU writes `mul.f32` and `add.f32`, which ptxas may merge into one `fma` if a sum takes a product.


def inexact(kernel: ptx.Kernel) -> list[str]:
    """Float instructions that do not round as IEEE 754 does, apart from what ptxas merges."""
    # The two halves of a register, of 16 bits each, are loaded and stored, tested and selected without arithmetic.
    instructions = [
        re.sub(r"\b(add|sub|mul)\.(f32|b?f16(x2)?)\b", r"\1.rn.\2", instruction.text) for instruction in kernel.instructions
    ]
    return ptx.inexact([ptx.Kernel([ptx._instruction(text) for text in instructions])])


def merging(kernel: ptx.Kernel) -> list[str]:
    """Sums that take a product with no `exact.seal` between."""
    sums = [
        instruction for instruction in kernel.instructions if re.match(r"(add|sub)\.(rn\.)?(f32|b?f16)", instruction.opcode)
    ]
    return [
        instruction.text
        for instruction in sums
        if not is_of_a_seal(instruction) and any(is_product(kernel, x) for x in instruction.operands)
    ]


def is_product(kernel: ptx.Kernel, register: str) -> bool:
    return kernel.definition(register).opcode.startswith(("mul.f", "mul.rn.f", "mul.bf", "mul.rn.bf"))


def is_of_a_seal(instruction: ptx.Instruction) -> bool:
    """Whether this is the ``x + x`` of a seal, which is used where x is infinite or NaN: merged or not, it then is, too."""
    a, b = instruction.operands
    return instruction.opcode.startswith("add.") and a == b
