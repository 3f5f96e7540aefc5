"""Reading a model from a path, bytes, a file object or a message, without trusting it."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import onnx
from google.protobuf.message import DecodeError

from jquant.onnx.errors import ModelError
from jquant.onnx.graph import MICROSOFT

_ONNX = ("", "ai.onnx")
_ONNXRUNTIME = {"LayerNormalization": 17, "SimplifiedLayerNormalization": math.inf}  # and since when ONNX has them

Source = str | os.PathLike[str] | bytes | IO[bytes] | onnx.ModelProto


def read(source: Source) -> tuple[onnx.ModelProto, str]:
    """The model, its external data loaded, and the name under which messages speak of it.

    Raises:
      ModelError: what is no valid model, or has data outside of its folder.
      OSError: a file that cannot be read.
      TypeError: another kind of source.
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
            onnx.load_external_data_for_model(model, str(folder))  # which refuses what lies outside of the folder
        else:
            _check_is_whole(model)
        model = _with_domains(model)
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as error:
            raise ModelError(_unknown(model) or str(error)) from error
    except Exception as error:  # whatever a broken file brings about
        raise ModelError(f"{name}: {error}") from error
    return model, name


def _check_is_whole(model: onnx.ModelProto) -> None:
    """
    Raises:
      ModelError: data beside a file that nobody has named. onnx's checker would look for it in the current folder.
    """
    for graph in _graphs(model.graph):
        attributes = [attribute for node in graph.node for attribute in node.attribute]
        tensors = [*graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))]
        for tensor in tensors:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                raise ModelError(f"tensor {tensor.name!r}: its data is in another file; load the model by its path")


def _unknown(model: onnx.ModelProto) -> str:
    """What the checker, which knows of ONNX's own operators alone, does not say: at which nodes there is none."""
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


def _with_domains(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, in which the operators that onnxruntime puts into ONNX's own domain are in its own."""
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
    """The graph, and those inside of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _parsed(data: bytes, name: str) -> onnx.ModelProto:
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, TypeError, RuntimeError) as error:
        raise ModelError(f"{name} is no ONNX model: {error}") from error
    if not model.HasField("graph"):
        raise ModelError(f"{name} is no ONNX model: it has no graph")
    return model
