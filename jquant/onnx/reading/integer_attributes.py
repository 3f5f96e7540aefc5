"""Holds integer attributes to their range: onnx's own code computes axes from them in 32 bits, and reads past its arrays."""

from collections.abc import Iterable, Iterator

import onnx

from jquant.errors import ModelError

_SMALLEST, _LARGEST = -(2**31), 2**31 - 1
_SMALLEST_OF = {"batch_dims": 0}
# Attributes whose values are the elements of a tensor, or positions in one that may lie past its end.
_ANY = {
    ("Constant", "value_int"),
    ("Constant", "value_ints"),
    ("Shape", "start"),
    ("Shape", "end"),
    ("Slice", "starts"),
    ("Slice", "ends"),
}


def check(model: onnx.ModelProto) -> None:
    """Checks all nodes, also those of subgraphs and of functions.

    Raises:
      ModelError: an integer that its attribute cannot be.
    """
    for node in _nodes(model):
        for attribute in node.attribute:
            _check_attribute(node, attribute)
    for function in model.functions:
        for attribute in function.attribute_proto:
            _check_attribute(onnx.NodeProto(op_type=function.name, domain=function.domain), attribute)


def _check_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    if (node.op_type, attribute.name) in _ANY:
        return
    smallest = _SMALLEST_OF.get(attribute.name, _SMALLEST)
    values = (attribute.i, *((min(attribute.ints), max(attribute.ints)) if attribute.ints else ()))
    for value in values:
        if not smallest <= value <= _LARGEST:
            name = node.name or next(filter(None, node.output), node.op_type)
            operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            allowed = f"from {smallest} to {_LARGEST}"
            raise ModelError(f"node {name!r} ({operator}): its attribute {attribute.name} has {value}; it must be {allowed}")


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    yield from _in_nodes(model.graph.node)
    for function in model.functions:
        yield from _in_nodes(function.node)
    for training in model.training_info:
        yield from _in_nodes([*training.initialization.node, *training.algorithm.node])


def _in_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _in_nodes(graph.node)
