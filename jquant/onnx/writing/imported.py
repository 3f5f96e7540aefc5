"""Nodes of files, which are written as they were."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx

from jquant.onnx.graphs import protos
from jquant.onnx.graphs.graph import Graph, Node
from jquant.onnx.graphs.graph import Value as Declared
from jquant.onnx.graphs.values import is_static, sizes
from jquant.onnx.running import packing, recorded_nodes
from jquant.onnx.running.folding import Origin
from jquant.onnx.running.recorded_nodes import Recorded
from jquant.onnx.writing import schemas, wide
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast, reshape
from jquant.onnx.writing.table import writer
from jquant.onnx.writing.tensor import Tensor, known

_Scope = dict[str, Tensor | None]


@writer(recorded_nodes.TYPE, node=None)
def _typed(builder: Builder, _: Any, value: Tensor, *, dtype: np.dtype) -> Tensor:
    return wide.widened(builder, value, dtype)


@writer(recorded_nodes.NODE, node=None)
def _node(builder: Builder, types: list[Any], arrays: Mapping[str, Any], *, recorded: Recorded) -> list[Tensor] | None:
    """The node with its own attributes and names; None if the model may not have it, or if it has a list as a result."""
    node = recorded.node
    inside = [each for body in node.subgraphs.values() for each in body.walk()]
    if len(types) != len(recorded.results) or not all(builder.allows(each.domain) for each in (node, *inside)):
        return None
    scope = _scope(builder, [node, *inside], {**recorded.known, **arrays})
    if scope is None or not all(_is_declared(body) for body in node.subgraphs.values()):
        return None
    for each in (node, *inside):
        since, until = schemas.versions(each, builder.shared.versions.get(each.domain, 1))
        builder.shared.require(each.operator, each.domain, since, until)
    values = [scope.get(name) for name in node.inputs]
    full = [None if value is None else wide.in_full(builder, value) for value in values]
    operands = [None if value is None else cast(builder, value, dtype) for value, dtype in schemas.matched(node, full)]
    inputs = ["" if operand is None else builder.name(operand) for operand in operands]
    outputs = [builder.shared.names.reserve(name) if name else "" for name in node.outputs]
    proto = onnx.helper.make_node(
        node.operator, inputs, outputs, name=builder.shared.node_names.reserve(node.name), domain=node.domain
    )
    proto.attribute.extend(protos.attributes(node))
    proto.attribute.extend(_bodies(builder, node, scope))
    builder.nodes.append(proto)
    return _results(builder, node, proto, operands, recorded.results, types)


@writer(recorded_nodes.FOLDED, node=None)
def _folded(builder: Builder, _: Any, value: Tensor, *, name: str, origin: Origin) -> Tensor:
    """The nodes that computed a parameter when the model was loaded, if its value is still what they compute."""
    if value.known is None:
        return value
    with jax.default_device(jax.devices("cpu")[0]):
        computed = origin.computed()
    if np.asarray(value.known).tobytes() != np.asarray(computed[name]).tobytes():
        return value
    scope: dict[str, Any] = {}
    for node, group in itertools.groupby(origin.nodes, lambda node: node.origin or node):
        del group  # the node of the file computes what its body does
        results = [key for key in node.outputs if key in computed]
        recorded = Recorded(node, {key: origin.arrays[key] for key in node.inputs if key in origin.arrays}, results)
        types = [jax.ShapeDtypeStruct(computed[key].shape, computed[key].dtype) for key in results]
        arrays = {key: scope[key] for key in node.inputs if key in scope}
        written = builder.once(("computed", node), functools.partial(_node, builder, types, arrays, recorded=recorded))
        if written is None:
            return value
        scope |= zip(results, written, strict=True)
    return scope[name]


def _results(
    builder: Builder,
    node: Node,
    proto: onnx.NodeProto,
    operands: Sequence[Tensor | None],
    names: Sequence[str],
    types: Sequence[Any],
) -> list[Tensor]:
    """The results of a node in JAX's types."""
    dtypes = schemas.result_types(node, proto, [None if each is None else each.dtype for each in operands])
    results = []
    for name, type in zip(names, types, strict=True):
        name = proto.output[node.outputs.index(name)]
        dtype = np.dtype(dtypes.get(name, type.dtype))
        full = dtype if jax.dtypes.canonicalize_dtype(dtype) == type.dtype else np.dtype(type.dtype)
        value = Tensor(full, tuple(type.shape), name=name)
        results.append(wide.narrowed(builder, value, np.dtype(type.dtype)))
    return results


def _scope(builder: Builder, nodes: Sequence[Node], values: Mapping[str, Any]) -> _Scope | None:
    """The values that nodes read, by name, as the file has them; None if a packed matrix is not known."""
    scope: _Scope = {}
    for name, value in values.items():
        if value is None:
            scope.setdefault(name, None)
        elif isinstance(value, Tensor):
            scope[name] = _named(builder, value, name)
        elif is_static(value):
            scope[name] = _static(builder, value, name)
    for node in nodes:
        for position, name in enumerate(node.inputs):
            if name not in values or isinstance(values[name], Tensor) or is_static(values[name]):
                continue
            leaves = jax.tree.leaves(values[name])
            role = packing.packing_of(node, position)
            if role is None or not all(leaf.is_known for leaf in leaves):
                return None
            make = functools.partial(_unpacked, role, values[name])
            arrays = builder.once(("unpacked", leaves[0], role), make)
            for each, array in zip((name, *role.absorbed), arrays, strict=False):
                if each and scope.get(each) is None:
                    scope[each] = _named(builder, known(array), each)
    return scope


def _unpacked(role: Any, packed: Any) -> tuple[np.ndarray, ...]:
    """The arrays of a packed matrix."""
    with jax.default_device(jax.devices("cpu")[0]):
        return role.unpack(jax.tree.map(lambda leaf: leaf.known, packed))


def _named(builder: Builder, value: Tensor, name: str) -> Tensor:
    """A value, which becomes an initializer under the name that it has in the file if it is known."""
    value = wide.in_full(builder, value)
    if value.known is None or value.name is not None:
        return value
    return dataclasses.replace(value, name=builder.shared.initializer(value.known, name, exactly=True))


def _static(builder: Builder, array: np.ndarray, name: str) -> Tensor:
    if array.dtype == object:
        return reshape(builder, builder.shape(sizes(array)), array.shape)
    return _named(builder, known(array), name)


def _is_declared(graph: Graph) -> bool:
    """Whether the inputs and the outputs of a body, and of those inside it, are tensors of declared types."""
    return all(value.dtype is not None for scope in graph.scopes() for value in (*scope.inputs, *scope.outputs))


def _bodies(builder: Builder, node: Node, scope: _Scope) -> Iterator[onnx.AttributeProto]:
    for name, graph in node.subgraphs.items():
        yield onnx.helper.make_attribute(name, _body(builder, graph, _names(builder, scope)))


def _names(builder: Builder, scope: _Scope) -> dict[str, str]:
    """The names in the written graph of the values that a body reads."""
    full = {name: wide.in_full(builder, value) for name, value in scope.items() if value is not None}
    return {name: builder.name(value) for name, value in full.items()}


def _body(builder: Builder, graph: Graph, names: dict[str, str]) -> onnx.GraphProto:
    """A graph inside a node, with names that nothing else in the model has.

    Args:
      names: those of the values around it, by the names that the file has for them.
    """
    unused, names = builder.shared.names, dict(names)
    own = {value.name: unused.reserve(value.name) for value in graph.inputs}
    names |= own
    nodes = []
    for node in graph.nodes:
        own |= {name: unused.reserve(name) for name in node.outputs if name}
        inputs = [names.get(name, "") for name in node.inputs]
        names |= own
        outputs = [own[name] if name else "" for name in node.outputs]
        proto = onnx.helper.make_node(node.operator, inputs, outputs, name=unused.reserve(node.name), domain=node.domain)
        proto.attribute.extend(protos.attributes(node))
        for name, inner in node.subgraphs.items():
            proto.attribute.append(onnx.helper.make_attribute(name, _body(builder, inner, names)))
        nodes.append(proto)
    inputs = [_declared(value, own[value.name]) for value in graph.inputs]
    outputs = []
    for value in graph.outputs:
        if value.name not in own or own[value.name] in {output.name for output in outputs}:
            # A body can only return what it computes itself.
            name = unused.reserve(value.name)
            nodes.append(onnx.helper.make_node("Identity", [names[value.name]], [name], name=name))
            outputs.append(_declared(value, name))
        else:
            outputs.append(_declared(value, own[value.name]))
    return onnx.helper.make_graph(nodes, unused.new("body"), inputs, outputs)


def _declared(value: Declared, name: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), value.shape)
