"""Builders of small GGUF files."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write(path: Path, tensors: dict[str, Any], *, endianness: Any = None, **keys: Any) -> Path:
    """Writes a file. `tensors`: arrays, or pairs of bytes and their type, by name; `keys`: metadata."""
    writer = gguf.GGUFWriter(path, "test", **({} if endianness is None else {"endianess": endianness}))
    for name, value in keys.items():
        add = {str: writer.add_string, int: writer.add_uint32}.get(type(value), writer.add_array)
        add(name, value)
    for name, value in tensors.items():
        data, type_ = value if isinstance(value, tuple) else (value, None)
        writer.add_tensor(name, data, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(type_: gguf.GGMLQuantizationType, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Blocks of random bytes, for a tensor of this shape."""
    rng = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[type_]
    return rng.integers(0, 256, (*shape[:-1], shape[-1] // block * size), np.uint8)


def dequantized(data: np.ndarray, type_: gguf.GGMLQuantizationType) -> np.ndarray:
    """What the package gguf makes of blocks, whose scales may be anything."""
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(data, type_)


def finite_blocks(type_: gguf.GGMLQuantizationType, shape: tuple[int, int]) -> np.ndarray:
    """Random blocks in whose rows all weights are finite, and so are their sums."""
    data = random_blocks(type_, (40 * shape[0], shape[1]))
    if type_ == gguf.GGMLQuantizationType.MXFP4:
        data[:, ::17] = 100 + data[:, ::17] % 60  # exponents
    return data[np.isfinite(dequantized(data, type_)).all(-1)][: shape[0]]
