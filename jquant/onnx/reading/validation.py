"""Validates a model with onnx's checker, and makes up for what the checker refuses although onnxruntime takes it."""

import math
from collections.abc import Iterator

import onnx

from jquant.errors import ModelError
from jquant.onnx.graphs.graph import MICROSOFT
from jquant.onnx.reading import order

_ONNX = ("", "ai.onnx")
# Operators that onnxruntime puts into ONNX's domain, and the version of the operator set since which ONNX has them.
_ONNXRUNTIME = {"LayerNormalization": 17, "SimplifiedLayerNormalization": math.inf}


def validated(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with its nodes in order and its operators in their domains, in a copy if that changes anything.

    Raises:
      ModelError: a model that is not valid.
    """
    model = order.in_order(_with_domains(model))
    try:
        onnx.checker.check_model(_with_shapes(model))
    except onnx.checker.ValidationError as error:
        raise ModelError(_unknown_operators(model) or str(error)) from error
    return model


def check_has_all_data(model: onnx.ModelProto) -> None:
    """Checks that a model without a path has no external data. onnx's checker would look for it in the current folder.

    Raises:
      ModelError: a tensor whose data is in another file.
    """
    for graph in _graphs(model.graph):
        attributes = [attribute for node in graph.node for attribute in node.attribute]
        tensors = [*graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))]
        for tensor in tensors:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                raise ModelError(f"tensor {tensor.name!r}: its data is in another file; load the model from its path")


def _unknown_operators(model: onnx.ModelProto) -> str:
    """A message about nodes whose operator does not exist, in ONNX's own domain, the only one that onnx's checker knows."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    version = versions.get("", versions.get("ai.onnx", 1))
    local = {(function.domain, function.name) for function in model.functions}
    messages = []
    for node in _nodes(model.graph):
        if (
            node.domain in _ONNX
            and (node.domain, node.op_type) not in local
            and not onnx.defs.has(node.op_type, version, "")
        ):
            name = node.name or next(filter(None, node.output), node.op_type)
            messages.append(f"node {name!r} ({node.op_type}, version {version}): there is no such operator in ONNX")
    return "\n".join(messages)


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model for onnx's checker, which insists that the shapes of inputs and the types of outputs are declared.

    The checker does not look at what they are. The format allows inputs and outputs of any rank, and the types of outputs
    follow from the graph.
    """

    def lacks_shape(value: onnx.ValueInfoProto) -> bool:
        field = value.type.WhichOneof("value")
        return field == "tensor_type" and not value.type.tensor_type.HasField("shape")

    def lacks_type(value: onnx.ValueInfoProto) -> bool:
        field = value.type.WhichOneof("value")
        return field is None or (field == "tensor_type" and not value.type.tensor_type.elem_type)

    graph = model.graph
    if not any(map(lacks_shape, (*graph.input, *graph.output))) and not any(map(lacks_type, graph.output)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in filter(lacks_type, copy.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for value in filter(lacks_shape, (*copy.graph.input, *copy.graph.output)):
        value.type.tensor_type.shape.SetInParent()
    return copy


def _with_domains(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, with the operators that onnxruntime puts into ONNX's domain moved to onnxruntime's own."""
    version = next((entry.version for entry in model.opset_import if entry.domain in _ONNX), 1)
    later = {name for name, since in _ONNXRUNTIME.items() if version < since}
    if not any(node.op_type in later and node.domain in _ONNX for node in _nodes(model.graph)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in _nodes(copy.graph):
        if node.op_type in later and node.domain in _ONNX:
            node.domain = MICROSOFT
    if all(entry.domain != MICROSOFT for entry in copy.opset_import):
        copy.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    return copy


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for inner in _graphs(graph):
        yield from inner.node


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph, and the graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)
