"""Expands operators without a converter that ONNX's schema defines as functions of other operators."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from jquant.onnx.graphs import protos
from jquant.onnx.graphs.graph import Graph, Node
from jquant.onnx.reading.reader import Reader, versions
from jquant.onnx.running import registry

_MAX_DEPTH = 8  # of bodies inside bodies


def expanded(graph: Graph, dtypes: Mapping[str, np.dtype], depth: int = 0) -> Graph:
    """`graph`, with each node that has no converter replaced by its body, if the schema has one.

    Args:
      dtypes: the dtypes of values, by name, as far as they are known. Some bodies depend on them.
      depth: how many bodies `graph` is inside of.
    """
    nodes, constants = [], dict(graph.constants)
    for node in graph.nodes:
        subgraphs = {name: expanded(subgraph, dtypes, depth) for name, subgraph in node.subgraphs.items()}
        node = dataclasses.replace(node, attributes={**node.attributes, **subgraphs})
        body = None if registry.find(node) or depth == _MAX_DEPTH else _body(node, dtypes)
        if body is None:
            nodes.append(node)
        else:
            inside = expanded(body, dtypes, depth + 1)
            nodes += (dataclasses.replace(each, origin=node) for each in inside.nodes)
            constants |= inside.constants
    return dataclasses.replace(graph, nodes=tuple(nodes), constants=constants)


def _body(node: Node, dtypes: Mapping[str, np.dtype]) -> Graph | None:
    """The body of a node's operator, between the values that the node reads and computes."""
    try:
        schema: Any = onnx.defs.get_schema(node.operator, node.version, node.domain)  # the type stubs of onnx are incomplete
    except onnx.defs.SchemaError:
        return None
    if schema.has_context_dependent_function:
        latest = max(node.version, schema.since_version)
        fitting = [version for version in schema.context_dependent_function_opset_versions if version <= latest]
        types = [_type(name, dtypes).SerializeToString() for name in node.inputs]
        serialized = schema.get_context_dependent_function_with_opset_version(max(fitting), _serialized(node), types)
    elif schema.has_function:
        fitting = [version for version in schema.function_opset_versions if version <= node.version]
        if not fitting:
            return None
        serialized = schema.get_function_with_opset_version(max(fitting))
    else:
        return None
    if not serialized:
        return None
    function = serialized if isinstance(serialized, onnx.FunctionProto) else onnx.FunctionProto.FromString(serialized)
    inputs = dict(zip(function.input, (*node.inputs, *[""] * len(function.input)), strict=False))
    names = inputs | {name: outer for name, outer in zip(function.output, node.outputs, strict=False) if outer}
    attributes = registry.schema_defaults(schema) | dict(node.attributes)
    reader = Reader({node.domain: node.version} | versions(function.opset_import), attributes)
    return reader.body(function.node, names, prefix=f"{node.name}/")


def _serialized(node: Node) -> bytes:
    """The node without its subgraphs: a body does not depend on their contents."""
    proto = onnx.helper.make_node(node.operator, node.inputs, node.outputs, domain=node.domain)
    proto.attribute.extend(protos.attributes(node))
    return proto.SerializeToString()


def _type(name: str, dtypes: Mapping[str, np.dtype]) -> onnx.TypeProto:
    """The type of an operand: float32 if it is not known, none if the operand is left out."""
    if not name:
        return onnx.TypeProto()
    dtype = dtypes.get(name, np.dtype(np.float32))
    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(dtype), None)
