"""Graphs inside nodes, such as the body of a loop, and what a graph needs of its nodes."""

from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
import onnx

from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast
from jquant.onnx.writing.tensor import Tensor

_WITHOUT_IDENTITY = frozenset({"int4", "uint4", "int2", "uint2"})  # in onnxruntime


def body(
    builder: Builder, name: str, types: Sequence[jax.ShapeDtypeStruct], write: Callable[..., Sequence[Tensor]]
) -> onnx.GraphProto:
    """The graph of a node.

    Args:
      types: those of the inputs.
      write: takes a builder of the graph and the inputs, and returns the outputs.
    """
    inner = builder.body()
    inputs = [inner.result(type, f"{name}_input") for type in types]
    outputs = write(inner, *inputs)
    names: list[str] = []
    for output in outputs:
        old = inner.name(output)
        is_made = old not in names and any(old in node.output for node in inner.nodes)
        names.append(old if is_made else inner.name(copied(inner, output, "unchanged")))
    declared = [declaration(name, value) for name, value in zip(names, outputs, strict=True)]
    nodes = alive(inner.nodes, set(names))
    return onnx.helper.make_graph(nodes, name, [declaration(inner.name(value), value) for value in inputs], declared)


def copied(builder: Builder, value: Tensor, label: str) -> Tensor:
    """The same value under a name of its own."""
    if str(value.dtype) not in _WITHOUT_IDENTITY:
        return builder.node("Identity", [value], value.type, since=13, label=label)
    wide = cast(builder, Tensor(value.dtype, value.shape, name=builder.name(value)), np.int8)
    to = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return builder.node("Cast", [wide], value.type, since=9, to=to, label=label)


def declaration(name: str, value: Tensor) -> onnx.ValueInfoProto:
    """A value with its type, as an input or output of a graph."""
    sizes = [size if isinstance(size, int) else str(size) for size in value.shape]
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), sizes)


def alive(nodes: Sequence[onnx.NodeProto], needed: set[str]) -> list[onnx.NodeProto]:
    """The nodes that these values need."""
    kept, needed = [], set(needed)
    for node in reversed(nodes):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed |= set(read([node]))
    return kept[::-1]


def inside(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """The graphs inside nodes."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
                yield from inside(attribute.g.node)


def every(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of the graphs inside them."""
    yield from nodes
    for graph in inside(nodes):
        yield from graph.node


def read(nodes: Sequence[onnx.NodeProto]) -> Iterator[str]:
    """The names that nodes read, also inside their graphs."""
    for node in every(nodes):
        yield from node.input
    for graph in inside(nodes):
        yield from (output.name for output in graph.output)
