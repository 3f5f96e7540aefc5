"""A model's graph as plain data, in which every value has a unique name, also in subgraphs."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from jquant.errors import ModelError

_LARGEST = 2**31  # elements of a tensor
DEFAULT_DOMAIN = ""
MICROSOFT = "com.microsoft"
JQUANT = "jquant"  # the domain of the nodes that fusion makes; it is in no file


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One call of an operator.

    Attributes:
      operator, domain: such as "Conv" and "" (ONNX's own), or "QLinearAdd" and "com.microsoft".
      version: of the operator set of its domain that the model imports.
      name: the node's, or else that of its first output.
      inputs, outputs: names of values; "" for one that is left out.
      attributes: by name: numbers, strings, lists of these, NumPy arrays, and `Graph` for a subgraph.
    """

    operator: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The operator's name, with its domain if that is not ONNX's own."""
        return f"{self.domain}.{self.operator}" if self.domain else self.operator

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"node {self.name!r} ({self.kind}, version {self.version})"

    @property
    def subgraphs(self) -> dict[str, "Graph"]:
        return {name: value for name, value in self.attributes.items() if isinstance(value, Graph)}


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """What a graph declares of a value: its element type (None if not declared), and its shape, with None or a name for
    each size that is not fixed (None if the rank is not fixed either)."""

    name: str
    dtype: np.dtype | None
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        sizes = "?" if self.shape is None else ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype or 'of no tensor type'}[{sizes}]"


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in an order in which they can be computed.

    Attributes:
      inputs: those without an initializer.
      initializers: the tensors of the file, by name.
      constants: the values of Constant nodes, by the names of their outputs. These nodes are not among `nodes`.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    initializers: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    constants: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def walk(self) -> Iterator[Node]:
        """All nodes, including those of subgraphs."""
        for graph in self.scopes():
            yield from graph.nodes

    def scopes(self) -> Iterator["Graph"]:
        """This graph and its subgraphs."""
        yield self
        for node in self.nodes:
            for subgraph in node.subgraphs.values():
                yield from subgraph.scopes()


class Reader:
    """Reads protocol messages into `Graph`: names in subgraphs become unique, attributes become Python values.

    Args:
      versions: the operator set of each domain.
      references: the values of a function's attributes, for the nodes of its body that refer to them.
    """

    def __init__(self, versions: Mapping[str, int], references: Mapping[str, Any] | None = None):
        self._versions = versions
        self._references = references

    def graph(self, proto: GraphProto, names: Mapping[str, str] | None = None, prefix: str = "") -> Graph:
        """`proto` as a graph inside the scope `names`. A name that it defines itself gets `prefix`."""
        names = dict(names or {})

        def defined(name: str) -> str:
            names[name] = prefix + name
            return names[name]

        initializers = {defined(tensor.name): to_array(tensor) for tensor in proto.initializer}
        for sparse in proto.sparse_initializer:
            initializers[defined(sparse.values.name)] = _dense(sparse)
        given = [value for value in proto.input if prefix + value.name not in initializers]
        inputs = tuple(_value(value, defined(value.name)) for value in given)
        body = self.body(proto.node, names, prefix)
        outputs = tuple(_value(value, names.get(value.name, value.name)) for value in proto.output)
        return dataclasses.replace(body, inputs=inputs, outputs=outputs, initializers=initializers)

    def body(self, protos: Iterable[NodeProto], names: dict[str, str], prefix: str) -> Graph:
        """The nodes and the constants. Their outputs are added to `names`."""
        found, constants = [], {}
        for proto in protos:
            inputs = tuple(names.get(name, name) if name else "" for name in proto.input)
            label = prefix + (proto.name or next(filter(None, proto.output), proto.op_type))
            try:
                attributes = self._attributes(proto, names, label)
            except ModelError:
                raise
            except Exception as error:  # a broken file may raise anything
                raise ModelError(f"node {label!r}: {error}") from error
            for name in proto.output:
                if name:
                    names.setdefault(name, prefix + name)
            outputs = tuple(names[name] if name else "" for name in proto.output)
            domain = _domain(proto.domain)
            version = self._versions.get(domain, 1 if domain else 0)
            node = Node(proto.op_type, domain, version, label, inputs, outputs, attributes)
            if node.kind == "Constant":
                constants[outputs[0]] = _constant(node)
            else:
                found.append(node)
        return Graph(tuple(found), constants=constants)

    def _attributes(self, proto: NodeProto, names: Mapping[str, str], label: str) -> dict[str, Any]:
        found = {}
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                if self._references is not None and attribute.ref_attr_name in self._references:
                    found[attribute.name] = self._references[attribute.ref_attr_name]
                continue
            if attribute.type == AttributeProto.GRAPH:
                found[attribute.name] = self.graph(attribute.g, names, f"{label}/{attribute.name}/")
            else:
                found[attribute.name] = _attribute(attribute, label)
        return found


def _attribute(attribute: AttributeProto, label: str) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.TENSOR:
        return to_array(value)
    if attribute.type == AttributeProto.STRING:
        return value.decode()
    if attribute.type == AttributeProto.STRINGS:
        return [each.decode() for each in value]
    if attribute.type in (AttributeProto.FLOAT, AttributeProto.INT):
        return value
    if attribute.type in (AttributeProto.FLOATS, AttributeProto.INTS):
        return list(value)
    if attribute.type == AttributeProto.TYPE_PROTO:
        return value
    kind = AttributeProto.AttributeType.Name(attribute.type).lower()
    raise ModelError(f"node {label!r}: its attribute {attribute.name!r} is of kind {kind}, which is not supported")


def _constant(node: Node) -> np.ndarray:
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    for name, value in node.attributes.items():
        if name == "value":
            return value
        if name in dtypes:
            return np.asarray(value, dtypes[name])
    raise ModelError(f"{node.title}: none of its attributes, {', '.join(node.attributes) or '(none)'}, holds a tensor")


def _domain(domain: str) -> str:
    return DEFAULT_DOMAIN if domain == "ai.onnx" else domain


def versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {_domain(each.domain): each.version for each in imports}


def to_array(tensor: TensorProto) -> np.ndarray:
    """A tensor of the file as a NumPy array.

    Raises:
      ModelError: a broken tensor, or one whose data is in a file beside the model, without a path.
    """
    if tensor.data_location == TensorProto.EXTERNAL:
        raise ModelError(f"tensor {tensor.name!r}: its data is in another file; load the model from its path")
    _check_size(tensor.dims, tensor.data_type, tensor.name)
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # a broken file may raise anything
        raise ModelError(f"tensor {tensor.name!r}: {error}") from error


def _check_size(dims: Iterable[int], data_type: int, name: str) -> None:
    """
    Raises:
      ModelError: negative sizes, or sizes whose product cannot fit in memory.
    """
    dims = list(dims)
    if min(dims, default=0) < 0 or math.prod(dims) > _LARGEST:
        raise ModelError(f"tensor {name!r}: it cannot have shape {dims}")
    if data_type not in TensorProto.DataType.values():
        raise ModelError(f"tensor {name!r}: there is no element type {data_type}")


def _dense(sparse: onnx.SparseTensorProto) -> np.ndarray:
    values, indices = to_array(sparse.values), to_array(sparse.indices)
    _check_size(sparse.dims, sparse.values.data_type, sparse.values.name)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    places = np.unravel_index(indices, dense.shape) if indices.ndim == 1 else tuple(indices.T)
    dense[places] = values
    return dense


def _value(proto: onnx.ValueInfoProto, name: str) -> Value:
    if proto.type.WhichOneof("value") != "tensor_type":
        return Value(name, None, None)
    tensor = proto.type.tensor_type
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else None
    except KeyError as error:
        raise ModelError(f"value {name!r}: there is no element type {tensor.elem_type}") from error
    if not tensor.HasField("shape"):
        return Value(name, dtype, None)
    return Value(name, dtype, tuple(map(_size, tensor.shape.dim)))


def _size(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    kind = dimension.WhichOneof("value")
    if kind == "dim_value":  # exporters write -1, and some 0, for a size that is not fixed
        return dimension.dim_value if dimension.dim_value > 0 else None
    return dimension.dim_param or None if kind else None
