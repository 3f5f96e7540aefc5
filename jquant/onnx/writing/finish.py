"""The last step of an export: a model of what has been written, without what nothing reads."""

import importlib
from collections.abc import Sequence

import numpy as np
import onnx

from jquant.onnx.graphs.graph import DEFAULT_DOMAIN
from jquant.onnx.writing import bodies
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.tensor import Tensor

_OLDEST_FORMAT = 4  # from which initializers need not be inputs


def model(
    builder: Builder, graph_name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], names: Sequence[str]
) -> onnx.ModelProto:
    """The model whose outputs have these names."""
    written = builder.shared
    old_names = [builder.name(output) for output in outputs]
    made = {name for node in builder.nodes for name in node.output}
    renamed: dict[str, str] = {}
    for output, old, name in zip(outputs, old_names, names, strict=True):
        if old in made and old not in renamed:
            renamed[old] = name
        else:
            copy = bodies.copied(builder, Tensor(output.dtype, output.shape, name=old), name)
            renamed[builder.name(copy)] = name
    nodes = bodies.alive(builder.nodes, set(renamed))
    _rename(nodes, renamed)
    read = {*bodies.read(nodes), *names}
    graph = onnx.helper.make_graph(
        nodes,
        graph_name,
        [bodies.declaration(builder.name(value), value) for value in inputs],
        [bodies.declaration(name, value) for name, value in zip(names, outputs, strict=True)],
    )
    domains = {DEFAULT_DOMAIN, *(node.domain for node in bodies.every(nodes))}
    versions = [
        onnx.helper.make_opsetid(domain, version)
        for domain, version in sorted(written.versions.items())
        if domain in domains
    ]
    result = onnx.helper.make_model(
        graph,
        opset_imports=versions,
        producer_name="jquant",
        producer_version=importlib.import_module("jquant").__version__,
        ir_version=max(_OLDEST_FORMAT, onnx.helper.find_min_ir_version_for(versions, ignore_unknown=True)),
    )
    for name, array in written.initializers.items():  # into the model itself, so that weights are copied once
        if name in read:
            result.graph.initializer.append(_tensor(array, name))
    return result


def _tensor(array: np.ndarray, name: str) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _rename(nodes: Sequence[onnx.NodeProto], names: dict[str, str]) -> None:
    """Gives values other names, where nodes write and read them."""
    for node in bodies.every(nodes):
        for values in (node.input, node.output):
            for index, name in enumerate(values):
                if name in names:
                    values[index] = names[name]
    taken = {node.name for node in nodes}  # the names of nodes of files are as they were
    for node in nodes:
        name = names.get(node.name, node.name)
        node.name = node.name if name in taken else name
