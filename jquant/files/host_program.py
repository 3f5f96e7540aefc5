"""A program and its arguments in one file, which a host reads with nothing but C.

The file begins with lines of text, the last of which is ``end``:

    jquant-host 1                       the version of the format
    function jquant_product.2           of jquant-native, which the program calls; one line for each
    program uint8[3021] 0               the module of StableHLO
    parameter float32[64] 3072          an argument that is the same in each call
    state int8[1,16,32] 3328 1          one that is this at first, and then output 1 of the call before
    input float32[3,64]                 one that the host hands in
    output float32[3,64]

Arguments and outputs are in the order of the program. The number behind the shape tells where the elements lie, in
little-endian order, those of less than a byte in one each: in bytes from the first multiple of 64 after the text, and at a
multiple of 64 each, so that a host may use them where they are mapped into memory. The last four bytes of the file, from a
multiple of 64 on, are the Adler-32 checksum of all others.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jquant.files.replacing import replacing

_ALIGNMENT = 64


class Array(NamedTuple):
    """An argument or an output of the program.

    Attributes:
      value: what the file keeps of an argument; None for an input.
      output: for state, the number of the output that takes its place.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    value: np.ndarray | None = None
    output: int | None = None

    @property
    def kind(self) -> str:
        return "input" if self.value is None else "parameter" if self.output is None else "state"

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


def write(
    path: Path, program: bytes, functions: Sequence[str], arguments: Sequence[Array], outputs: Sequence[Array]
) -> None:
    """Writes a file that appears whole or not at all."""
    module = Array(np.dtype(np.uint8), (len(program),), np.frombuffer(program, np.uint8))
    lines = ["jquant-host 1", *(f"function {name}" for name in functions)]
    pieces: list[np.ndarray] = []
    end = 0
    for kind, each in [("program", module), *((argument.kind, argument) for argument in arguments)]:
        line = f"{kind} {each}"
        if each.value is not None:
            line += f" {end}"
            pieces.append(each.value)
            end += each.value.nbytes + -each.value.nbytes % _ALIGNMENT
        lines.append(line if each.output is None else f"{line} {each.output}")
    lines += (f"output {each}" for each in outputs)
    text = "".join(f"{line}\n" for line in [*lines, "end"]).encode()
    checksum = 1
    with replacing(path) as file:
        for piece in (np.frombuffer(text, np.uint8), *pieces):
            flat = np.ascontiguousarray(piece).reshape(-1)
            little = flat.astype(flat.dtype.newbyteorder("<"), copy=False).view(np.uint8)
            for part in (little.data, bytes(-little.nbytes % _ALIGNMENT)):
                checksum = zlib.adler32(part, checksum)
                file.write(part)
        file.write(checksum.to_bytes(4, "little"))
