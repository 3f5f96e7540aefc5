"""Reads protocol messages into `Graph`."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from jquant.errors import ModelError
from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, Graph, Node, Value
from jquant.onnx.running import limits

_LARGEST = 2**31  # elements of a tensor


class Reader:
    """Reads graphs. Names in subgraphs become unique, and attributes become Python values.

    Args:
      versions: the version of each domain's operator set.
      references: for the body of a function, the values of the attributes that its nodes refer to.
    """

    def __init__(self, versions: Mapping[str, int], references: Mapping[str, Any] | None = None):
        self._versions = versions
        self._references = references
        self._dense_bytes = self._sparse_bytes = 0

    def graph(
        self,
        proto: GraphProto,
        names: Mapping[str, str] | None = None,
        prefix: str = "",
        large: Mapping[str, np.ndarray] | None = None,
    ) -> Graph:
        """`proto` as a graph.

        Args:
          large: initializers that are not in `proto`.
          names: the surrounding scope: unique names by those that `proto` uses.
          prefix: what makes the names unique that `proto` defines itself.
        """
        names = dict(names or {})

        def defined(name: str) -> str:
            names[name] = prefix + name
            return names[name]

        initializers = {defined(name): array for name, array in (large or {}).items()}
        initializers |= {defined(tensor.name): to_array(tensor) for tensor in proto.initializer}
        for sparse in proto.sparse_initializer:
            initializers[defined(sparse.values.name)] = self._dense(sparse)
        required = [value for value in proto.input if prefix + value.name not in initializers]
        inputs = tuple(_value(value, defined(value.name)) for value in required)
        body = self.body(proto.node, names, prefix)
        outputs = tuple(_value(value, names.get(value.name, value.name)) for value in proto.output)
        return dataclasses.replace(body, inputs=inputs, outputs=outputs, initializers=initializers)

    def body(self, protos: Iterable[NodeProto], names: dict[str, str], prefix: str) -> Graph:
        """The nodes and the constants, as a graph. Their outputs are added to `names`."""
        nodes, constants = [], {}
        for proto in protos:
            inputs = tuple(names.get(name, name) if name else "" for name in proto.input)
            label = prefix + (proto.name or next(filter(None, proto.output), proto.op_type))
            try:
                attributes = self._attributes(proto, names, label)
            except ModelError:
                raise
            except Exception as error:  # a malformed file may raise anything
                raise ModelError(f"node {label!r}: {error}") from error
            for name in proto.output:
                if name:
                    names.setdefault(name, prefix + name)
            outputs = tuple(names[name] if name else "" for name in proto.output)
            domain = _domain(proto.domain)
            version = self._versions.get(domain, 1 if domain else 0)
            node = Node(
                operator=proto.op_type,
                domain=domain,
                version=version,
                name=label,
                inputs=inputs,
                outputs=outputs,
                attributes=attributes,
            )
            if node.qualified_operator == "Constant":
                constants[outputs[0]] = _constant(node)
            else:
                nodes.append(node)
        return Graph(tuple(nodes), constants=constants)

    def _dense(self, sparse: onnx.SparseTensorProto) -> np.ndarray:
        values, indices = to_array(sparse.values), to_array(sparse.indices)
        _check_size(sparse.dims, sparse.values.data_type, sparse.values.name)
        self._dense_bytes += math.prod(sparse.dims) * values.dtype.itemsize
        self._sparse_bytes += values.nbytes
        limits.check_sparse(self._dense_bytes, self._sparse_bytes)
        dense = np.zeros(tuple(sparse.dims), values.dtype)
        positions = np.unravel_index(indices, dense.shape) if indices.ndim == 1 else tuple(indices.T)
        dense[positions] = values
        return dense

    def _attributes(self, proto: NodeProto, names: Mapping[str, str], label: str) -> dict[str, Any]:
        values = {}
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                if self._references is not None and attribute.ref_attr_name in self._references:
                    values[attribute.name] = self._references[attribute.ref_attr_name]
                continue
            if attribute.type == AttributeProto.GRAPH:
                values[attribute.name] = self.graph(attribute.g, names, f"{label}/{attribute.name}/")
            else:
                values[attribute.name] = _attribute(attribute, label)
        return values


def _attribute(attribute: AttributeProto, label: str) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.TENSOR:
        return to_array(value)
    if attribute.type == AttributeProto.STRING:
        return value.decode()
    if attribute.type == AttributeProto.STRINGS:
        return [text.decode() for text in value]
    if attribute.type in (AttributeProto.FLOAT, AttributeProto.INT):
        return value
    if attribute.type in (AttributeProto.FLOATS, AttributeProto.INTS):
        return list(value)
    if attribute.type == AttributeProto.TYPE_PROTO:
        return value
    type_name = AttributeProto.AttributeType.Name(attribute.type).lower()
    raise ModelError(f"node {label!r}: its attribute {attribute.name!r} is of kind {type_name}, which is not supported")


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
    """The version of each domain's operator set."""
    return {_domain(entry.domain): entry.version for entry in imports}


def to_array(tensor: TensorProto) -> np.ndarray:
    """A tensor of the file as a NumPy array.

    Raises:
      ModelError: a malformed tensor, or one whose data is in another file, which a model without a path cannot refer to.
    """
    if tensor.data_location == TensorProto.EXTERNAL:
        raise ModelError(f"tensor {tensor.name!r}: its data is in another file; load the model from its path")
    _check_size(tensor.dims, tensor.data_type, tensor.name)
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # a malformed file may raise anything
        raise ModelError(f"tensor {tensor.name!r}: {error}") from error


def _check_size(dims: Iterable[int], data_type: int, name: str) -> None:
    """Checks what a tensor states about itself before it is read.

    Raises:
      ModelError: negative sizes, sizes whose product cannot fit in memory, or an unknown element type.
    """
    dims = list(dims)
    if min(dims, default=0) < 0 or math.prod(dims) > _LARGEST:
        raise ModelError(f"tensor {name!r}: it cannot have shape {dims}")
    if data_type not in TensorProto.DataType.values():
        raise ModelError(f"tensor {name!r}: there is no element type {data_type}")


def _value(proto: onnx.ValueInfoProto, name: str) -> Value:
    if proto.type.WhichOneof("value") != "tensor_type":
        return Value(name=name, dtype=None, shape=None)
    tensor = proto.type.tensor_type
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else None
    except KeyError as error:
        raise ModelError(f"value {name!r}: there is no element type {tensor.elem_type}") from error
    if not tensor.HasField("shape"):
        return Value(name=name, dtype=dtype, shape=None)
    return Value(name=name, dtype=dtype, shape=tuple(map(_size, tensor.shape.dim)))


def _size(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    field = dimension.WhichOneof("value")
    if field == "dim_value":  # exporters write -1, and some 0, for a size that is not fixed
        return dimension.dim_value if dimension.dim_value > 0 else None
    return dimension.dim_param or None if field else None
