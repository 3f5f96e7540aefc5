"""The descriptors of com.microsoft's operators compared with onnxruntime's own schemas."""

import importlib

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

ONNX_TYPES = {"tensor(float)": "FLOAT32", "tensor(int8)": "INT8", "tensor(uint8)": "UINT8"}


@pytest.mark.parametrize("operator", ["multiply", "concat", "leaky_relu", "sigmoid", "softmax", "global_average_pool"])
def test_schema(operator):
    """The descriptor has the schema's tensors with their data types, and the same tensors are optional.

    Two zero points that the schema requires are optional here, with a default of 0.
    """
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    module = importlib.import_module(f"jquant.operators.quantized_linear_{operator}")
    descriptor = module._descriptor(0) if operator == "concat" else module._DESCRIPTOR
    schemas = {(schema.domain, schema.name): schema for schema in get_all_operator_schema()}
    schema = schemas["com.microsoft", descriptor.operator.document]
    types = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}

    def rows(parameters):
        for parameter in parameters:
            allowed = types.get(parameter.typeStr, [parameter.typeStr])
            yield parameter.name.lower(), parameter.option.name == "Optional", {ONNX_TYPES[name] for name in allowed}

    theirs, ours = [*rows(schema.inputs), *rows(schema.outputs)], []
    for tensor in descriptor.table:
        ours.append((tensor.name.lower(), tensor.kind == "Optional input", set(tensor.data_types.split())))
    if operator == "concat":  # the schema has one row for all tensors of the inputs, and no zero point is optional
        theirs.remove(("inputs", False, {"FLOAT32", "INT8", "UINT8"}))
        ours = [(name, False, data_types) for name, _, data_types in ours if not name.startswith("inputs[0]")]
    also_optional = {"softmax": {"y_zero_point"}, "global_average_pool": {"x_zero_point", "y_zero_point"}}.get(
        operator, set()
    )
    assert ours == [(name, optional or name in also_optional, data_types) for name, optional, data_types in theirs]
