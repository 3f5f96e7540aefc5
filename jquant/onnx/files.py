"""Reads a model from a path, bytes, a file object or a message, without trusting it."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import onnx
from google.protobuf.message import DecodeError

from jquant.errors import ModelError
from jquant.onnx import order
from jquant.onnx.graph import MICROSOFT

_ONNX = ("", "ai.onnx")
_ONNXRUNTIME = {"LayerNormalization": 17, "SimplifiedLayerNormalization": math.inf}  # the version in which ONNX has it
_OTHERS = {
    b"version https://git-lfs": "a pointer of Git LFS to one (`git lfs pull` fetches the file)",
    b"GGUF": "a GGUF file",
    b"PK\3\4": "a zip archive, as PyTorch writes",
    b"<": "a page in HTML or XML",
}  # by how a file begins

Source = str | os.PathLike[str] | bytes | IO[bytes] | onnx.ModelProto


def read(source: Source) -> tuple[onnx.ModelProto, str]:
    """The model with its external data loaded, and its name for messages.

    Raises:
      ModelError: not a valid model, or its data is outside of its folder.
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
            _check_is_whole(model)
        model = order.in_order(_with_domains(model))
        try:
            onnx.checker.check_model(_with_shapes(model))
        except onnx.checker.ValidationError as error:
            raise ModelError(_unknown(model) or str(error)) from error
    except Exception as error:  # a broken file may raise anything
        raise ModelError(f"{name}: {error}") from error
    return model, name


def _check_is_whole(model: onnx.ModelProto) -> None:
    """
    Raises:
      ModelError: data in a file beside the model, without a path. onnx's checker would look in the current folder.
    """
    for graph in _graphs(model.graph):
        attributes = [attribute for node in graph.node for attribute in node.attribute]
        tensors = [*graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))]
        for tensor in tensors:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                raise ModelError(f"tensor {tensor.name!r}: its data is in another file; load the model from its path")


def _unknown(model: onnx.ModelProto) -> str:
    """Finds nodes whose operator does not exist; onnx's checker only knows ONNX's own operators."""
    versions = {each.domain: each.version for each in model.opset_import}
    version = versions.get("", versions.get("ai.onnx", 1))
    local = {(function.domain, function.name) for function in model.functions}
    found = []
    for node in _nodes(model.graph):
        if (
            node.domain in _ONNX
            and (node.domain, node.op_type) not in local
            and not onnx.defs.has(node.op_type, version, "")
        ):
            name = node.name or next(filter(None, node.output), node.op_type)
            found.append(f"node {name!r} ({node.op_type}, version {version}): there is no such operator in ONNX")
    return "\n".join(found)


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model for onnx's checker, which insists that shapes of inputs, and types of outputs, are declared.

    It does not look at what they are. The format allows inputs and outputs of any rank, and the types of outputs follow from
    the graph.
    """

    def lacks_shape(value: onnx.ValueInfoProto) -> bool:
        kind = value.type.WhichOneof("value")
        return kind == "tensor_type" and not value.type.tensor_type.HasField("shape")

    def lacks_type(value: onnx.ValueInfoProto) -> bool:
        kind = value.type.WhichOneof("value")
        return kind is None or (kind == "tensor_type" and not value.type.tensor_type.elem_type)

    graph = model.graph
    if not any(map(lacks_shape, (*graph.input, *graph.output))) and not any(map(lacks_type, graph.output)):
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for value in filter(lacks_type, found.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for value in filter(lacks_shape, (*found.graph.input, *found.graph.output)):
        value.type.tensor_type.shape.SetInParent()
    return found


def _with_domains(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, with the operators that onnxruntime puts into ONNX's domain moved to onnxruntime's own."""
    version = next((each.version for each in model.opset_import if each.domain in _ONNX), 1)
    later = {name for name, since in _ONNXRUNTIME.items() if version < since}
    if not any(node.op_type in later and node.domain in _ONNX for node in _nodes(model.graph)):
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for node in _nodes(found.graph):
        if node.op_type in later and node.domain in _ONNX:
            node.domain = MICROSOFT
    if all(each.domain != MICROSOFT for each in found.opset_import):
        found.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    return found


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for each in _graphs(graph):
        yield from each.node


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph, and the graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _parsed(data: bytes, name: str) -> onnx.ModelProto:
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, TypeError, RuntimeError) as error:
        raise ModelError(f"{name} is not an ONNX model, {_looks_like(data) or 'or is truncated'}: {error}") from error
    if not model.HasField("graph"):
        raise ModelError(f"{name} is not an ONNX model: it has no graph")
    return model


def _looks_like(data: bytes) -> str:
    """What a file is instead of a model, by how it begins."""
    for beginning, what in _OTHERS.items():
        if data.startswith(beginning):
            return f"but {what}"
    return "but a safetensors file" if data[8:9] == b"{" else ""
