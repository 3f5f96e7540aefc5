"""The parts of a node as protocol messages."""

from collections.abc import Iterator

import numpy as np
import onnx

from jquant.onnx.graphs.graph import Graph, Node


def attributes(node: Node) -> Iterator[onnx.AttributeProto]:
    """The attributes of a node, without its subgraphs."""
    for name, value in node.attributes.items():
        if isinstance(value, Graph):
            continue
        if isinstance(value, np.ndarray):
            value = onnx.numpy_helper.from_array(value)
        type = _type_of(node, name) if isinstance(value, list) and not value else None
        yield onnx.helper.make_attribute(name, value, attr_type=type)


def _type_of(node: Node, name: str) -> int:
    """The type of an attribute whose value, an empty list, does not show it."""
    try:
        return int(onnx.defs.get_schema(node.operator, node.version, node.domain).attributes[name].type)  # type: ignore[arg-type]
    except (onnx.defs.SchemaError, KeyError):
        return onnx.AttributeProto.INTS
