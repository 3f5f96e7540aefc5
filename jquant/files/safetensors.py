"""Safetensors files: headers, every part of which is checked, and the writing of whole files.

The package safetensors silently takes the last of two tensors with the same name, and its NumPy functions lack 8-bit floats.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from jquant.errors import CheckpointError
from jquant.files.diagnostics import refuse
from jquant.files.replacing import replacing
from jquant.files.stored_tensor import MAX_BYTES, StoredTensor, check_offsets, check_shape

_MAX_BYTES = 100_000_000  # of a header or a JSON file; the package safetensors has the same limit for headers
_DTYPES: Mapping[str, np.dtype] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "BOOL": np.bool_,
        "U8": np.uint8,
        "I8": np.int8,
        "U16": "<u2",
        "I16": "<i2",
        "U32": "<u4",
        "I32": "<i4",
        "U64": "<u8",
        "I64": "<i8",
        "F16": "<f2",
        "BF16": ml_dtypes.bfloat16,
        "F32": "<f4",
        "F64": "<f8",
        "C64": "<c8",
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    }.items()
}

_NAMES = {dtype.newbyteorder("="): name for name, dtype in _DTYPES.items()}


class NewTensor(NamedTuple):
    """A tensor to be written: its name, dtype and shape, and a function that returns its elements."""

    name: str
    dtype: np.dtype
    shape: Sequence[int]
    read: Callable[[], np.ndarray]


def has_dtype(dtype: Any) -> bool:
    """Whether the format has a dtype."""
    return dtype in _NAMES


def write(
    path: Path,
    tensors: Sequence[NewTensor],
    metadata: Mapping[str, str],
    each: Callable[[Sequence[NewTensor]], Iterable[NewTensor]] = iter,
) -> None:
    """Writes a file that appears whole or not at all. The metadata come first in its header.

    Tensors are read one after the other, as `each` hands them on. They lie in an order in which each begins at a multiple of
    its elements' size, and those of one size in that of their names.
    """
    tensors = sorted(tensors, key=lambda tensor: (-tensor.dtype.itemsize, tensor.name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for tensor in tensors:
        begin, end = end, end + math.prod(tensor.shape) * tensor.dtype.itemsize
        header[tensor.name] = {"dtype": _NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in each(tensors):
            elements = np.ascontiguousarray(tensor.read()).reshape(tensor.shape)  # which was at least of rank 1
            assert elements.dtype == tensor.dtype
            little = elements.astype(elements.dtype.newbyteorder("<"), copy=False)
            file.write(little.reshape(-1).view(np.uint8).data)


def read_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of a file, and its metadata.

    Raises:
      CheckpointError: the file is not valid.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_BYTES):
            declared = f"as safetensors, it declares a header of {length} bytes in a file of {size}"
            refuse(path, None, f"is not a safetensors or GGUF file, or is truncated: {declared}")
        header = parse_json(path, file.read(length))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or any(not isinstance(value, str) for value in metadata.values()):
        refuse(path, None, "__metadata__ of the header must map strings to strings")
    tensors = {name: _tensor(path, name, entry, 8 + length) for name, entry in header.items()}
    check_offsets(tensors.values(), path, 8 + length, size, gaps=False)
    return tensors, metadata


def _tensor(path: Path, name: str, entry: object, start: int) -> StoredTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        refuse(path, name, "its entry in the header must have dtype, shape and data_offsets, and nothing else")
    type_name = entry["dtype"]
    dtype = _DTYPES.get(type_name) if isinstance(type_name, str) else None
    if dtype is None:
        refuse(path, name, f"its type is {str(type_name)[:100]}; it must be one of {', '.join(_DTYPES)}")
    shape = check_shape(path, name, entry["shape"], dtype.itemsize)
    offsets = entry["data_offsets"]
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or any(type(offset) is not int or not 0 <= offset <= MAX_BYTES for offset in offsets)
    ):
        refuse(path, name, f"its data_offsets are {str(offsets)[:100]}; they must be two byte positions")
    begin, end = offsets
    nbytes = math.prod(shape) * dtype.itemsize
    if end - begin != nbytes:
        refuse(path, name, f"has {end - begin} bytes, according to its data_offsets; {type_name}{list(shape)} has {nbytes}")
    return StoredTensor(path=path, name=name, dtype=dtype, shape=shape, offset=start + begin, type_name=type_name)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      CheckpointError: it is not a file with a JSON object, or is too large.
    """
    if not path.is_file():
        refuse(path, None, "is not a file")
    if path.stat().st_size > _MAX_BYTES:
        refuse(path, None, f"has more than {_MAX_BYTES} bytes")
    return parse_json(path, path.read_bytes())


def parse_json(path: Path, text: bytes) -> dict[str, Any]:
    """The object in a JSON text from the file `path`. No key may appear twice.

    Raises:
      CheckpointError: the text is invalid, or no object.
    """

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = {}
        for key, value in pairs:
            if key in values:
                refuse(path, key, "appears twice")
            values[key] = value
        return values

    try:
        parsed = json.loads(text.decode(), object_pairs_hook=unique_keys)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number with too many digits, too deep a nesting
        refuse(path, None, f"its JSON is invalid: {error}")
    if not isinstance(parsed, dict):
        refuse(path, None, "its JSON must be an object")
    return parsed
