"""What the schemas of operators say about nodes of files: the versions in which they mean the same, and types."""

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx.version_converter

from jquant.onnx.graphs import protos
from jquant.onnx.graphs.graph import Node
from jquant.onnx.graphs.sources import CONTROL_FLOW
from jquant.onnx.writing.tensor import Tensor

_OLDEST_CONTROL_FLOW = 11  # from which on If, Loop and Scan have only been given more types
_MISJUDGED = frozenset({"GroupNormalization"})  # the converter leaves it alone where it does not know the shapes
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def versions(node: Node, version: int) -> tuple[int, int | None]:
    """The first and the last version of the operator set for which a node can be written; None if there is no last one.

    Most new versions of operators only add types. Whether a node means the same in `version`, onnx's converter knows.
    """
    later = [change for change in _history().get((node.domain, node.operator), ()) if change > node.version]
    if not later or (version >= min(later) and _means_the_same(node, version)):
        return node.version, None
    return node.version, min(later) - 1


def _means_the_same(node: Node, version: int) -> bool:
    """Whether a node of a file is the same node in a newer version."""
    if node.qualified_operator in CONTROL_FLOW:
        return node.version >= _OLDEST_CONTROL_FLOW
    if node.domain or node.qualified_operator in _MISJUDGED:
        return False
    attributes = tuple(sorted(attribute.SerializeToString() for attribute in protos.attributes(node)))
    given = tuple(bool(name) for name in node.inputs)
    return _converts(node.operator, node.version, version, given, len(node.outputs), attributes)


@functools.cache
def _converts(
    operator: str, version: int, target: int, given: tuple[bool, ...], outputs: int, attributes: tuple[bytes, ...]
) -> bool:
    """Whether onnx's converter leaves a node as it is."""
    inputs = [f"x{index}" if is_given else "" for index, is_given in enumerate(given)]
    results = [f"y{index}" for index in range(outputs)]
    node = onnx.helper.make_node(operator, inputs, results)
    node.attribute.extend(map(onnx.AttributeProto.FromString, attributes))
    graph = onnx.helper.make_graph([node], "node", list(map(_float, filter(None, inputs))), list(map(_float, results)))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
    try:
        (converted,) = onnx.version_converter.convert_version(model, target).graph.node
    except Exception:  # it raises what its function in C++ does; or there are several nodes
        return False
    before, after = ({each.name: each for each in which.attribute} for which in (node, converted))
    same = before.keys() == after.keys() and all(before[name] == after[name] for name in before)
    return same and (converted.op_type, list(converted.input)) == (operator, inputs)


@functools.cache
def _history() -> dict[tuple[str, str], list[int]]:
    """The versions in which an operator has changed, by its domain and name."""
    changes: dict[tuple[str, str], list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        changes.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    return changes


@functools.cache
def since(
    operator: str, domain: str, version: int, operands: tuple[np.dtype | None, ...], results: tuple[np.dtype, ...]
) -> int:
    """The first version of the operator set, from `version` on, in which a node takes operands of these types.

    It is `version` itself for an operator without a schema, and if no version takes them.
    """
    for candidate in [version, *(change for change in _history().get((domain, operator), ()) if change > version)]:
        try:
            schema = onnx.defs.get_schema(operator, candidate, domain)
        except onnx.defs.SchemaError:
            return version
        if _takes(schema.inputs, operands) and _takes(schema.outputs, results):
            return candidate
    return version


def _takes(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], dtypes: Sequence[np.dtype | None]) -> bool:
    pairs = zip(_formal(parameters, len(dtypes)), dtypes, strict=True)
    return all(parameter is None or dtype is None or _type(dtype) in parameter.types for parameter, dtype in pairs)


def _type(dtype: np.dtype) -> str:
    """A tensor of this type, as schemas call it."""
    return f"tensor({onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(dtype)).lower()})"


def _float(name: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)


def _schema(node: Node) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(node.operator, node.version, node.domain)
    except onnx.defs.SchemaError:
        return None


def matched(node: Node, operands: Sequence[Tensor | None]) -> list[tuple[Tensor | None, np.dtype]]:
    """Each operand with the type in which the node takes it.

    That is its own, unless the schema wants int64 or int32 there, or the type of another operand, which has 64 bits.
    """
    schema = _schema(node)
    if schema is None:
        return [(operand, _INT32 if operand is None else operand.dtype) for operand in operands]
    formal = list(_formal(schema.inputs, len(operands)))
    wide = {each.type_str for each, x in zip(formal, operands, strict=True) if each and x and x.dtype == _INT64}
    result = []
    for parameter, operand in zip(formal, operands, strict=True):
        dtype = _INT32 if operand is None else operand.dtype
        if parameter is not None and dtype in (_INT32, _INT64):
            allowed = [each for each in (_INT32, _INT64) if f"tensor({each})" in parameter.types]
            dtype = _INT64 if parameter.type_str in wide and _is_shared(schema, parameter) else dtype
            dtype = allowed[0] if len(allowed) == 1 else dtype
        result.append((operand, dtype))
    return result


def _is_shared(schema: onnx.defs.OpSchema, parameter: onnx.defs.OpSchema.FormalParameter) -> bool:
    """Whether all operands of a parameter's type have one type."""
    return parameter.is_homogeneous and parameter.type_str in {each.type_param_str for each in schema.type_constraints}


def _formal(
    parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int
) -> Iterator[onnx.defs.OpSchema.FormalParameter | None]:
    """The parameter of each of so many operands, or results."""
    for position in range(count):
        index = min(position, len(parameters) - 1)
        is_rest = index >= 0 and parameters[index].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        yield parameters[index] if index >= 0 and (index == position or is_rest) else None


def result_types(node: Node, proto: onnx.NodeProto, dtypes: Sequence[np.dtype | None]) -> Mapping[str, np.dtype]:
    """The types of the outputs of a node, by name, as far as its schema tells them from those of its operands."""
    declared = [[value.dtype for value in body.outputs] for body in node.subgraphs.values()]
    if declared:
        types = declared[0][1:] if node.operator == "Loop" else declared[0]
        return {name: dtype for name, dtype in zip(proto.output, types, strict=False) if dtype is not None}
    schema = _schema(node)
    if schema is None:
        return {}
    types = {
        name: onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(dtype), None)
        for name, dtype in zip(proto.input, dtypes, strict=False)
        if name and dtype is not None
    }
    imports = [onnx.helper.make_opsetid(node.domain, node.version)]
    try:
        inferred = onnx.shape_inference.infer_node_outputs(schema, proto, types, opset_imports=imports)
    except Exception:  # it raises what the schema's function in C++ does
        return {}
    elements = {name: type.tensor_type.elem_type for name, type in inferred.items()}
    return {name: onnx.helper.tensor_dtype_to_np_dtype(element) for name, element in elements.items() if element}
