"""Replaces operators without a converter by their bodies, if ONNX's schema defines them as functions of other operators."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from jquant.onnx import registry
from jquant.onnx.graph import Graph, Node, Reader, versions

_DEEPEST = 8  # levels of bodies inside bodies


def expanded(graph: Graph, dtypes: Mapping[str, np.dtype], depth: int = 0) -> Graph:
    """`graph`, with nodes that have no converter replaced by their bodies, if there are any.

    Args:
      dtypes: those of the values whose element type is known. Some bodies depend on them.
    """
    nodes, constants = [], dict(graph.constants)
    for node in graph.nodes:
        subgraphs = {name: expanded(each, dtypes, depth) for name, each in node.subgraphs.items()}
        node = dataclasses.replace(node, attributes={**node.attributes, **subgraphs})
        body = None if registry.find(node) or depth == _DEEPEST else _body(node, dtypes)
        if body is None:
            nodes.append(node)
        else:
            inside = expanded(body, dtypes, depth + 1)
            nodes += inside.nodes
            constants |= inside.constants
    return dataclasses.replace(graph, nodes=tuple(nodes), constants=constants)


def _body(node: Node, dtypes: Mapping[str, np.dtype]) -> Graph | None:
    try:
        schema: Any = onnx.defs.get_schema(node.operator, node.version, node.domain)  # its type stubs are not complete
    except onnx.defs.SchemaError:
        return None
    if schema.has_context_dependent_function:
        fitting = [
            v for v in schema.context_dependent_function_opset_versions if v <= max(node.version, schema.since_version)
        ]
        types = [_type(name, dtypes).SerializeToString() for name in node.inputs]
        text = schema.get_context_dependent_function_with_opset_version(max(fitting), _proto(node), types)
    elif schema.has_function:
        fitting = _fitting(schema.function_opset_versions, node)
        if not fitting:
            return None
        text = schema.get_function_with_opset_version(max(fitting))
    else:
        return None
    if not text:
        return None
    function = text if isinstance(text, onnx.FunctionProto) else onnx.FunctionProto.FromString(text)
    given = dict(zip(function.input, (*node.inputs, *[""] * len(function.input)), strict=False))
    prefix = f"{node.name}/"
    names = given | {name: outer for name, outer in zip(function.output, node.outputs, strict=False) if outer}
    attributes = registry.schema_defaults(schema) | dict(node.attributes)
    reader = Reader({node.domain: node.version} | versions(function.opset_import), attributes)
    return reader.body(function.node, names, prefix)


def _fitting(versions: list[int], node: Node) -> list[int]:
    """The operator sets for which there is a body that fits the node."""
    return [version for version in versions if version <= node.version]


def _proto(node: Node) -> bytes:
    """The node as a message, without its subgraphs: a body does not depend on their contents."""
    attributes = {name: value for name, value in node.attributes.items() if not isinstance(value, Graph)}
    proto = onnx.helper.make_node(node.operator, node.inputs, node.outputs, domain=node.domain)
    for name, value in attributes.items():
        value = onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        proto.attribute.append(onnx.helper.make_attribute(name, value))
    return proto.SerializeToString()


def _type(name: str, dtypes: Mapping[str, np.dtype]) -> onnx.TypeProto:
    if not name:
        return onnx.TypeProto()
    dtype = dtypes.get(name, np.dtype(np.float32))
    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(dtype), None)


def element_types(model: onnx.ModelProto) -> dict[str, np.dtype]:
    """The result of ONNX's type inference for the values of the main graph."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # it gives up at an unknown operator; then float32 is assumed
        graph = model.graph
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.elem_type:
            found[value.name] = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    for tensor in graph.initializer:
        found[tensor.name] = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return found
