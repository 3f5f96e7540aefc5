"""The header of a GGUF file, every part of which is checked.

The reader of the package gguf trusts the number of elements that a broken file declares.
"""

import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import ml_dtypes
import numpy as np

from jquant.files.diagnostics import refuse
from jquant.files.stored_tensor import StoredTensor, check_offsets, check_shape

MAGIC = b"GGUF"
_MAX_NAME_LENGTH = 65535
_DEFAULT_ALIGNMENT = 32
_MAX_RANK = 4
_MAX_DEPTH = 32  # of arrays in arrays of metadata: the format has no limit, but a recursive reader needs one
_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, str] = dict(enumerate("BbHhIif?__Qqd"))  # the codes of the module struct, by type number
UNQUANTIZED: Mapping[str, Any] = {
    **{"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16, "F64": "<f8"},
    **{"I8": np.int8, "I16": "<i2", "I32": "<i4", "I64": "<i8"},
}


def package() -> ModuleType:
    """The package gguf, for its types, their block sizes, and its dequantization.

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
    """Reads the values of a header one after another, and never beyond the end of the file."""

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
        """The value of a metadata key: a number, a string, an array of numbers, or a list of strings or of arrays."""
        type_number = self.number("I")
        if type_number == _ARRAY:
            return self._array(name, _MAX_DEPTH)
        return self.string() if type_number == _STRING else self.number(self._scalar_code(name, type_number))

    def _array(self, name: str, max_depth: int) -> Any:
        type_number, count = self.number("I"), self.number("Q")
        if type_number == _STRING:
            self._require(8 * count)  # the length of each string
            return [self.string() for _ in range(count)]
        if type_number == _ARRAY:
            if max_depth == 1:
                refuse(self.path, None, f"{name!r} has arrays in arrays that are more than {_MAX_DEPTH} deep")
            self._require(12 * count)  # the type and the length of each array
            return [self._array(name, max_depth - 1) for _ in range(count)]
        code = self._scalar_code(name, type_number)
        if count > self.size:
            refuse(self.path, None, f"{name!r} has {count} elements, but the file has {self.size} bytes")
        dtype = np.dtype(np.bool_ if code == "?" else f"<{code}")
        return np.frombuffer(self.bytes(count * dtype.itemsize), dtype)

    def _scalar_code(self, name: str, type_number: int) -> str:
        code = _SCALARS.get(type_number, "_")
        if code == "_":
            refuse(self.path, None, f"{name!r} has type {type_number}, or is an array of it; there is no such type")
        return code


def read_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """The tensors of a file, where quantized ones are bytes, and its metadata.

    Raises:
      CheckpointError: the file is not valid.
      ModuleNotFoundError: the package gguf is not installed.
    """
    package()
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
        descriptions: dict[str, tuple[tuple[int, ...], int, int]] = {}  # shape, type number and offset
        for _ in range(count):
            name = header.string()
            rank = header.number("I")
            if len(name) > _MAX_NAME_LENGTH or rank > _MAX_RANK:
                limits = f"at most {_MAX_RANK}, and {_MAX_NAME_LENGTH} letters, are allowed"
                refuse(path, name, f"has {rank} dimensions, or too long a name; {limits}")
            if name in descriptions:
                refuse(path, name, "appears twice")
            shape = tuple(header.number("Q") for _ in range(rank))[::-1]
            descriptions[name] = shape, header.number("I"), header.number("Q")
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            refuse(path, None, f"general.alignment is {str(alignment)[:100]}; it must be a power of two")
        start = -(-file.tell() // alignment) * alignment
    tensors = {}
    for name, (shape, type_number, offset) in descriptions.items():
        if offset % alignment:
            refuse(path, name, f"lies {offset} bytes into the data, which is not a multiple of {alignment}")
        tensors[name] = _tensor(path, name, shape, type_number, start + offset)
    check_offsets(tensors.values(), path, start, size, gaps=True)
    files = metadata.get("split.count")
    if isinstance(files, int) and files > 1:
        warnings.warn(f"{path} is one of {files} files of a split model, and has only some of its tensors", stacklevel=3)
    return tensors, metadata


def _tensor(path: Path, name: str, shape: tuple[int, ...], type_number: int, offset: int) -> StoredTensor:
    gguf = package()
    try:
        tensor_type = gguf.GGMLQuantizationType(type_number)
        block, itemsize = gguf.GGML_QUANT_SIZES[tensor_type]
    except (ValueError, KeyError):
        refuse(path, name, f"has type {type_number}, which the package gguf does not know")
    type_name = tensor_type.name
    check_shape(path, name, shape, itemsize)
    if type_name in UNQUANTIZED:
        dtype = np.dtype(UNQUANTIZED[type_name])
    elif not shape or 0 in shape or shape[-1] % block:
        refuse(path, name, f"has shape {shape}; rows of {type_name} consist of blocks of {block}, and must not be empty")
    else:
        dtype, shape = np.dtype(np.uint8), (*shape[:-1], shape[-1] // block * itemsize)
    return StoredTensor(path=path, name=name, dtype=dtype, shape=shape, offset=offset, type_name=type_name)
