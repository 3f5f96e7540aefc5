"""The header of a GGUF file, read without trusting it, and the weights in its tensors.

The reader of the package gguf believes whatever number of elements a broken file claims to have.
"""

import struct
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import ml_dtypes
import numpy as np

from jquant.checkpoints.entry import Entry, stored
from jquant.checkpoints.errors import refuse
from jquant.checkpoints.stored import StoredTensor, check_offsets, check_shape
from jquant.checkpoints.weight import QuantizedWeight

MAGIC = b"GGUF"
_LONGEST_NAME = 65535
_ALIGNMENT = 32
_RANK = 4
_DEEPEST = 32  # arrays in arrays of metadata: the format has no limit, but a reader that recurses needs one
_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, str] = dict(enumerate("BbHhIif?__Qqd"))  # struct's codes, by the number of the type
_FLOATS: Mapping[str, Any] = {
    **{"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16, "F64": "<f8"},
    **{"I8": np.int8, "I16": "<i2", "I32": "<i4", "I64": "<i8"},
}


def _package() -> ModuleType:
    """The package gguf, needed only here: its types, their block sizes, and its dequantization.

    Raises:
      ModuleNotFoundError: it is not installed.
    """
    try:
        import gguf
    except ModuleNotFoundError as error:
        message = "GGUF files need the package gguf: install the extra `checkpoints` of jquant-jax"
        raise ModuleNotFoundError(message, name="gguf") from error
    return gguf


class _Header:
    """Reads values one after another, and never beyond the end of the file."""

    def __init__(self, path: Path, file: IO[bytes], size: int) -> None:
        self.path, self.file, self.size = path, file, size

    def bytes(self, count: int) -> bytes:
        self._require(count)
        return self.file.read(count)

    def _require(self, count: int) -> None:
        if count > self.size - self.file.tell():
            refuse(
                self.path,
                None,
                f"ends within its header: it needs {count} more bytes at byte {self.file.tell()} of {self.size}",
            )

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.bytes(struct.calcsize(f"<{code}")))[0]

    def string(self) -> str:
        data = self.bytes(self.number("Q"))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            refuse(self.path, None, f"has a string that is not UTF-8 before byte {self.file.tell()}: {error.reason}")

    def value(self, name: str) -> Any:
        """A number, a string, or an array: of numbers as one of NumPy, of strings or of other arrays as a list."""
        kind = self.number("I")
        if kind == _ARRAY:
            return self._array(name, _DEEPEST)
        return self.string() if kind == _STRING else self.number(self._scalar(name, kind))

    def _array(self, name: str, deepest: int) -> Any:
        kind, count = self.number("I"), self.number("Q")
        if kind == _STRING:
            self._require(8 * count)  # each has its length
            return [self.string() for _ in range(count)]
        if kind == _ARRAY:
            if deepest == 1:
                refuse(self.path, None, f"{name!r} has arrays in arrays that are more than {_DEEPEST} deep")
            self._require(12 * count)  # each has its type and its length
            return [self._array(name, deepest - 1) for _ in range(count)]
        code = self._scalar(name, kind)
        if count > self.size:
            refuse(self.path, None, f"{name!r} has {count} elements, but the file has {self.size} bytes")
        dtype = np.dtype(np.bool_ if code == "?" else f"<{code}")
        return np.frombuffer(self.bytes(count * dtype.itemsize), dtype)

    def _scalar(self, name: str, kind: int) -> str:
        code = _SCALARS.get(kind, "_")
        if code == "_":
            refuse(self.path, None, f"{name!r} has type {kind}, or is an array of it; there is no such type")
        return code


def read_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """The tensors of a file, those in blocks as bytes, and its metadata.

    Raises:
      CheckpointError: the file is not valid.
      ModuleNotFoundError: the package gguf is not installed.
    """
    _package()
    size = path.stat().st_size
    with path.open("rb") as file:
        header = _Header(path, file, size)
        if header.bytes(4) != MAGIC:
            refuse(path, None, "is not a GGUF file")
        version = header.number("I")
        if version not in (2, 3):
            byte_order = ", or the opposite byte order" if version & 0xFFFF == 0 else ""
            refuse(path, None, f"has GGUF version {version}{byte_order}; it must be 2 or 3")
        count, keys = header.number("Q"), header.number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            name = header.string()
            if name in metadata:
                refuse(path, None, f"{name!r} appears twice in its metadata")
            metadata[name] = header.value(name)
        described: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = header.string()
            rank = header.number("I")
            if len(name) > _LONGEST_NAME or rank > _RANK:
                refuse(
                    path,
                    name,
                    f"has {rank} dimensions, or too long a name; at most {_RANK}, and {_LONGEST_NAME} letters, are allowed",
                )
            if name in described:
                refuse(path, name, "appears twice")
            shape = tuple(header.number("Q") for _ in range(rank))[::-1]
            described[name] = shape, header.number("I"), header.number("Q")
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            refuse(path, None, f"general.alignment is {str(alignment)[:100]}; it must be a power of two")
        start = -(-file.tell() // alignment) * alignment
    tensors = {}
    for name, (shape, kind, offset) in described.items():
        if offset % alignment:
            refuse(path, name, f"lies {offset} bytes into the data, which is not a multiple of {alignment}")
        tensors[name] = _tensor(path, name, shape, kind, start + offset)
    check_offsets(tensors.values(), path, start, size, gaps=True)
    files = metadata.get("split.count")
    if isinstance(files, int) and files > 1:
        warnings.warn(f"{path} is one of {files} files of a split model, and has only some of its tensors", stacklevel=3)
    return tensors, metadata


def _tensor(path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int) -> StoredTensor:
    gguf = _package()
    try:
        what = gguf.GGMLQuantizationType(kind)
        block, itemsize = gguf.GGML_QUANT_SIZES[what]
    except (ValueError, KeyError):
        refuse(path, name, f"has type {kind}, which the package gguf does not know")
    check_shape(path, name, shape, itemsize)
    if what.name in _FLOATS:
        return StoredTensor(path, name, np.dtype(_FLOATS[what.name]), shape, offset, what.name)
    if not shape or 0 in shape or shape[-1] % block:
        refuse(path, name, f"has shape {shape}; rows of {what.name} consist of blocks of {block}, and must not be empty")
    return StoredTensor(path, name, np.dtype(np.uint8), (*shape[:-1], shape[-1] // block * itemsize), offset, what.name)


def entry(tensor: StoredTensor) -> Entry:
    """A tensor: floats as they are, simple blocks as a weight, and others dequantized by the package gguf."""
    if tensor.what in _FLOATS:
        return stored(tensor)
    if tensor.what in _BLOCKS and len(tensor.shape) >= 2:
        return Entry(tensor.what, tensor.nbytes, lambda: _weight(tensor))

    def read() -> np.ndarray:
        gguf = _package()
        try:
            with np.errstate(all="ignore"):
                return gguf.quants.dequantize(tensor.read(), gguf.GGMLQuantizationType[tensor.what])
        except NotImplementedError:
            tensor.refuse(f"is {tensor.what}, which the package gguf does not dequantize")

    return Entry(f"{tensor.what}, dequantized to float32", tensor.nbytes, read)


def _weight(tensor: StoredTensor) -> QuantizedWeight:
    gguf = _package()
    _, itemsize = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor.what]]
    data = tensor.read()
    blocks = data.reshape(*data.shape[:-1], data.shape[-1] // itemsize, itemsize)
    values, scale, minimum = _BLOCKS[tensor.what](blocks)

    def columns(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array.swapaxes(-1, -2))

    values = columns(values.reshape(*data.shape[:-1], -1))
    return QuantizedWeight(values, columns(scale), None, None if minimum is None else columns(minimum), None, 32)


_Parts = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # (..., G, 32), and float32 of (..., G)


def _float(blocks: np.ndarray, at: int) -> np.ndarray:
    """The 16-bit number that each block has at a byte offset."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def _nibbles(data: np.ndarray) -> np.ndarray:
    """The integers in 16 bytes: first the 16 lower halves, then the 16 upper ones."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _fifth_bits(data: np.ndarray) -> np.ndarray:
    return np.unpackbits(data, axis=-1, bitorder="little") << 4


def _q8_0(blocks: np.ndarray) -> _Parts:
    return blocks[..., 2:].view(np.int8), _float(blocks, 0), None


def _q4_0(blocks: np.ndarray) -> _Parts:
    return (_nibbles(blocks[..., 2:]).astype(np.int8) - np.int8(8)).astype(ml_dtypes.int4), _float(blocks, 0), None


def _q4_1(blocks: np.ndarray) -> _Parts:
    return _nibbles(blocks[..., 4:]).astype(ml_dtypes.uint4), _float(blocks, 0), _float(blocks, 2)


def _q5_0(blocks: np.ndarray) -> _Parts:
    values = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return values.astype(np.int8) - np.int8(16), _float(blocks, 0), None


def _q5_1(blocks: np.ndarray) -> _Parts:
    values = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return values.astype(np.int8), _float(blocks, 0), _float(blocks, 2)


_BLOCKS: Mapping[str, Callable[[np.ndarray], _Parts]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
}
