"""Reads a model from a path, bytes, a file object or a message, without trusting it."""

import contextlib
import dataclasses
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from jquant.errors import ModelError
from jquant.onnx.reading import integer_attributes, large_tensors, validation

_OTHER_FORMATS = {  # by how a file begins
    b"version https://git-lfs": "a pointer of Git LFS to one (`git lfs pull` fetches the file)",
    b"GGUF": "a GGUF file",
    b"PK\3\4": "a zip archive, as PyTorch writes",
    b"<": "a page in HTML or XML",
}

Source = str | os.PathLike[str] | bytes | IO[bytes] | onnx.ModelProto


@dataclasses.dataclass(frozen=True, eq=False)
class File:
    """What a file holds.

    Attributes:
      model: valid, with the nodes in order. The large initializers of its graph are inputs.
      large: these initializers.
      added: the names of those of them that are no inputs in the file.
      name: by which messages refer to the file.
    """

    model: onnx.ModelProto
    large: Sequence[large_tensors.Large]
    added: frozenset[str]
    name: str

    def arrays(self) -> dict[str, np.ndarray]:
        """The large initializers by name."""
        return {each.tensor.name: each.array for each in self.large}

    def whole(self) -> onnx.ModelProto:
        """The model in one message, as other engines take it."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        inputs = [value for value in self.model.graph.input if value.name not in self.added]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        model.graph.initializer.extend(each.whole() for each in self.large)
        return model


def read(source: Source) -> File:
    """Reads a model, with its external data.

    Raises:
      ModelError: a model that is not valid, or whose data is outside of its folder.
      OSError: a file that cannot be read.
      TypeError: a source of another type.
    """
    with _opened(source) as (file, name):
        model, large = _parsed(file, name)
    folder = Path(source).parent if isinstance(source, str | os.PathLike) else None
    try:
        if folder is None:
            validation.check_has_all_data(model)
        else:
            large += large_tensors.external(model, str(folder))
            onnx.load_external_data_for_model(model, str(folder))  # refuses files outside of the folder
        integer_attributes.check(model)
        added = large_tensors.declare(model, large)
        model = validation.validated(model)
    except Exception as error:  # a malformed file may raise anything
        raise ModelError(f"{name}: {error}") from error
    return File(model, large, added, name)


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[tuple[BinaryIO, str]]:
    """The bytes of a source, and what to call it in messages."""
    name, data = "the model", None
    if isinstance(source, str | os.PathLike):
        name = str(Path(source))
        with Path(source).open("rb") as file:
            if file.seekable():
                yield file, name
                return
            data = file.read()
    elif isinstance(source, onnx.ModelProto):
        try:
            data = source.SerializeToString()
        except Exception as error:  # more than 2 GB
            raise ModelError(f"{name}: {error}") from error
    elif isinstance(source, bytes | bytearray | memoryview):
        data = source
    elif hasattr(source, "read"):
        data, name = source.read(), str(getattr(source, "name", name))
    else:
        raise TypeError(f"source is a {type(source).__name__}; it must be a path, bytes, a binary file or a ModelProto")
    if isinstance(data, str):
        raise ModelError(f"{name} is not an ONNX model: it is a file of text; open it in binary mode")
    yield io.BytesIO(data), name


def _parsed(file: BinaryIO, name: str) -> tuple[onnx.ModelProto, list[large_tensors.Large]]:
    """The model without the large initializers of its graph, and these."""
    try:
        data, large = large_tensors.taken_out(file)
    except large_tensors.NotRead:
        file.seek(0)
        data, large = file.read(), []
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, TypeError, RuntimeError) as error:
        raise ModelError(f"{name} is not an ONNX model, {_other_format(data) or 'or is truncated'}: {error}") from error
    if not model.HasField("graph"):
        raise ModelError(f"{name} is not an ONNX model: it has no graph")
    return model, large


def _other_format(data: bytes) -> str:
    """What a file is instead of a model, judging by how it begins."""
    for beginning, description in _OTHER_FORMATS.items():
        if data.startswith(beginning):
            return f"but {description}"
    return "but a safetensors file" if data[8:9] == b"{" else ""
