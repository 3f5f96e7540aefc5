"""Reads a model from a path, bytes, a file object or a message, without trusting it."""

import os
from pathlib import Path
from typing import IO

import onnx
from google.protobuf.message import DecodeError

from jquant.errors import ModelError
from jquant.onnx.reading import integer_attributes, validation

_OTHER_FORMATS = {  # by how a file begins
    b"version https://git-lfs": "a pointer of Git LFS to one (`git lfs pull` fetches the file)",
    b"GGUF": "a GGUF file",
    b"PK\3\4": "a zip archive, as PyTorch writes",
    b"<": "a page in HTML or XML",
}

Source = str | os.PathLike[str] | bytes | IO[bytes] | onnx.ModelProto


def read(source: Source) -> tuple[onnx.ModelProto, str]:
    """The model with its external data loaded, and the name by which messages refer to it.

    Raises:
      ModelError: a model that is not valid, or whose data is outside of its folder.
      OSError: a file that cannot be read.
      TypeError: a source of another type.
    """
    name, folder = "the model", None
    if isinstance(source, onnx.ModelProto):
        model = source
    else:
        if isinstance(source, str | os.PathLike):
            path = Path(source)
            name, folder = str(path), path.parent
            data = path.read_bytes()
        elif isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
        elif hasattr(source, "read"):
            data = source.read()
            name = str(getattr(source, "name", name))
        else:
            raise TypeError(f"source is a {type(source).__name__}; it must be a path, bytes, a binary file or a ModelProto")
        model = _parsed(data, name)
    try:
        if folder is not None:
            onnx.load_external_data_for_model(model, str(folder))  # refuses files outside of the folder
        else:
            validation.check_has_all_data(model)
        integer_attributes.check(model)
        model = validation.validated(model)
    except Exception as error:  # a malformed file may raise anything
        raise ModelError(f"{name}: {error}") from error
    return model, name


def _parsed(data: bytes, name: str) -> onnx.ModelProto:
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, TypeError, RuntimeError) as error:
        raise ModelError(f"{name} is not an ONNX model, {_other_format(data) or 'or is truncated'}: {error}") from error
    if not model.HasField("graph"):
        raise ModelError(f"{name} is not an ONNX model: it has no graph")
    return model


def _other_format(data: bytes) -> str:
    """What a file is instead of a model, judging by how it begins."""
    for beginning, description in _OTHER_FORMATS.items():
        if data.startswith(beginning):
            return f"but {description}"
    return "but a safetensors file" if data[8:9] == b"{" else ""
