"""Reads files of `jquant.host.write`, by the description in jquant/files/host_program.py alone."""

import re
import zlib
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np


class Line(NamedTuple):
    """A line of the text, and the elements that it points to."""

    kind: str
    dtype: np.dtype
    shape: tuple[int, ...]
    value: np.ndarray | None = None
    output: int | None = None


def read(path: Path) -> tuple[list[str], list[Line]]:
    """The names of the functions, and all other lines."""
    data = path.read_bytes()
    assert zlib.adler32(data[:-4]) == int.from_bytes(data[-4:], "little")
    assert len(data) % 64 == 4
    text, _, _ = data.partition(b"\nend\n")
    start = -(-(len(text) + len(b"\nend\n")) // 64) * 64
    head, *rest = text.decode().split("\n")
    assert head == "jquant-host 1"
    functions = [line.removeprefix("function ") for line in rest if line.startswith("function ")]
    lines = []
    for line in rest[len(functions) :]:
        kind, name, sizes, numbers = re.fullmatch(r"(\w+) (\w+)\[([\d,]*)\]([ \d]*)", line).groups()
        dtype, shape = jnp.dtype(name), tuple(int(size) for size in sizes.split(",") if size)
        value, output = None, None
        if numbers:
            offset, *replacing = map(int, numbers.split())
            assert offset % 64 == 0
            count = int(np.prod(shape, dtype=int))
            value = np.frombuffer(data, dtype, count, start + offset).reshape(shape)
            output = replacing[0] if replacing else None
        lines.append(Line(kind, dtype, shape, value, output))
    return functions, lines
