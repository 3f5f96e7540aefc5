"""The onnx package's own node cases for these operators, by equality; each one left out stands here with its reason."""

import functools
import re
import warnings
from collections.abc import Callable

import numpy as np
import pytest

import jquant

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: oracle)")


def quantize_linear(x, scale, zero_point=None, *, axis=1):
    return jquant.quantize_linear(x, scale, zero_point, axis=axis if scale.ndim else None)


def dequantize_linear(x, scale, zero_point=None, *, axis=1):
    if scale.ndim:
        shape = [-1 if dimension == axis else 1 for dimension in range(x.ndim)]
        scale, zero_point = scale.reshape(shape), None if zero_point is None else zero_point.reshape(shape)
    return jquant.dequantize_linear(x, scale, zero_point)


def clip(x, min=None, max=None):
    """ONNX's bounds have the type of `x`; DirectML's are FLOAT."""
    bounds = {name: np.float32(bound) for name, bound in (("min", min), ("max", max)) if bound is not None}
    return jquant.clip(x, **bounds)


def pairs(pads):
    """ONNX has the pads before all dimensions, then those after."""
    return "VALID" if pads is None else list(zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True))


def conv_integer(x, w, x_zero_point=None, w_zero_point=None, *, pads=None):
    return jquant.convolution_integer(x, w, x_zero_point, w_zero_point, padding=pairs(pads))


OPERATORS: dict[str, Callable] = {
    "QuantizeLinear": quantize_linear,
    "DequantizeLinear": dequantize_linear,
    "MatMulInteger": jquant.matmul_integer,
    "QLinearMatMul": jquant.quantized_linear_matmul,
    "ConvInteger": conv_integer,
    "QLinearConv": jquant.quantized_linear_convolution,
    "Clip": clip,
}
LEFT_OUT = {
    r"test_clip_min_greater_than_max": "ONNX gives Max where Min > Max, the document's formula gives Min",
    r"test_(de)?quantizelinear_(e4m3fn|e5m2|float4e2m1).*": "float8 and float4 are no types of DirectML's operators",
    r"test_(de)?quantizelinear_u?int[24]": "types of fewer than 8 bits are not in the operators' tables",
    r"test_quantizelinear_u?int16": "ELEMENT_WISE_QUANTIZE_LINEAR has 8-bit outputs only",
    r"test_qlinearmatmul_.*_float16": "QUANTIZED_LINEAR_MATRIX_MULTIPLY has FLOAT32 scales only",
    r"test_(de)?quantizelinear_blocked.*": "blocks of a scale are not part of the element-wise operators",
}


@functools.cache
def node_cases() -> dict:
    """By name. The generator runs once a process; it needs its overflows and casts to pass without a warning."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    prefixes = tuple(f"test_{operator.lower()}" for operator in OPERATORS)
    return {case.name: case for case in cases if case.name.startswith(prefixes) and not case.name.endswith("_expanded")}


def left_out(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in LEFT_OUT)


def test_every_case_is_equal():
    operators = set()
    for name, case in node_cases().items():
        if left_out(name):
            continue
        (node,) = case.model.graph.node
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        for inputs, (expected,) in case.data_sets:
            given = iter(inputs)
            tensors = [next(given) if tensor else None for tensor in node.input]
            actual = OPERATORS[node.op_type](*tensors, **attributes)
            assert actual.dtype == expected.dtype, name
            np.testing.assert_array_equal(actual, expected, name)
        operators.add(node.op_type)
    assert operators == set(OPERATORS)


def test_left_out_cases_exist():
    for pattern in LEFT_OUT:
        assert any(re.fullmatch(pattern, name) for name in node_cases()), pattern


def test_min_greater_than_max():
    """The case left out, with the value of the document's formula."""
    case = node_cases()["test_clip_min_greater_than_max"]
    (((x, low, high), (theirs,)),) = case.data_sets
    assert low > high
    np.testing.assert_array_equal(theirs, np.full_like(x, high))
    np.testing.assert_array_equal(jquant.clip(x, low, high), np.full_like(x, low))
