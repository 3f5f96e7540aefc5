"""The header of a safetensors file, every part of which is checked.

The package safetensors silently takes the last of two tensors with the same name, and its NumPy functions lack 8-bit floats.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jquant.errors import CheckpointError
from jquant.files.diagnostics import refuse
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
