"""The node tests of the onnx package for these operators, by equality; those left out are listed with a reason."""

import functools
import itertools
import re
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal

import jquant
from jquant.cases import samples
from jquant.modes import data_type

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: oracle)")


def linear(operator):
    """QuantizeLinear or DequantizeLinear with ONNX's attributes; the axis is ignored if the scale is a scalar."""

    def call(x, scale, zero_point=None, *, axis=1, output_dtype=None, **blocks):
        output_dtype = output_dtype and onnx.helper.tensor_dtype_to_np_dtype(output_dtype)
        options = {"axis": axis, **blocks} if scale.ndim else {}
        return operator(x, scale, zero_point, output_dtype=output_dtype, feature_level="EXTENDED", **options)

    return call


def clip(x, min=None, max=None):
    """Clip with FLOAT bounds, as in DirectML; ONNX's bounds have the dtype of `x`."""
    bounds = {name: np.float32(bound) for name, bound in (("min", min), ("max", max)) if bound is not None}
    return jquant.clip(x, **bounds)


def padding_pairs(pads):
    """The padding of each dimension; ONNX lists the pads before all dimensions, then those after."""
    return "VALID" if pads is None else list(zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True))


def conv_integer(x, w, x_zero_point=None, w_zero_point=None, *, pads=None):
    return jquant.convolution_integer(x, w, x_zero_point, w_zero_point, padding=padding_pairs(pads))


OPERATORS: dict[str, Callable] = {
    "QuantizeLinear": linear(jquant.quantize_linear),
    "DequantizeLinear": linear(jquant.dequantize_linear),
    "DynamicQuantizeLinear": jquant.dynamic_quantize_linear,
    "MatMulInteger": jquant.matmul_integer,
    "QLinearMatMul": functools.partial(jquant.quantized_linear_matmul, feature_level="EXTENDED"),
    "ConvInteger": conv_integer,
    "QLinearConv": jquant.quantized_linear_convolution,
    "Clip": clip,
}
LEFT_OUT = {
    r"test_quantizelinear_float4e2m1": "ONNX turns -0 into 0 by a zero point of 0; jquant does not",
    r"test_clip_min_greater_than_max": "for Min > Max, ONNX returns Max, and DirectML's formula Min",
}


@functools.cache
def node_cases() -> dict:
    """The cases by name. Their generator warns of overflows and casts, which are intended."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    prefixes = tuple(f"test_{operator.lower()}" for operator in OPERATORS)
    return {case.name: case for case in cases if case.name.startswith(prefixes) and not case.name.endswith("_expanded")}


def array(tensor) -> np.ndarray:
    """A tensor of a case as an array; it is a message if NumPy lacks its type."""
    return onnx.numpy_helper.to_array(tensor) if isinstance(tensor, onnx.TensorProto) else np.asarray(tensor)


def left_out(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in LEFT_OUT)


def test_every_case_is_equal():
    operators = set()
    for name, case in node_cases().items():
        if left_out(name):
            continue
        (node,) = case.model.graph.node
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        for inputs, outputs in case.data_sets:
            arrays = iter(map(array, inputs))
            operands = [next(arrays) if name else None for name in node.input]
            actual = jax.tree.leaves(OPERATORS[node.op_type](*operands, **attributes))
            assert_equal(actual, [array(output) for output in outputs], name)
        operators.add(node.op_type)
    assert operators == set(OPERATORS)


def test_left_out_cases_exist():
    for pattern in LEFT_OUT:
        assert any(re.fullmatch(pattern, name) for name in node_cases()), pattern


def types(operator: str) -> list[list[np.dtype]]:
    """The types that each of the three type parameters allows at opset 25, except for powers of two, a type of scales."""
    return [
        [
            data_type("type", name.upper())
            if re.match(r"float\de", name)
            else jnp.dtype({"float": "float32"}.get(name, name))
            for name in (type.removeprefix("tensor(").removesuffix(")") for type in constraint.allowed_type_strs)
            if name != "float8e8m0"
        ]
        for constraint in onnx.defs.get_schema(operator, 25).type_constraints
    ]


def test_every_type_is_accepted():
    """All combinations of types, except for integer scales."""

    def result_type(operator, x, scale, **options):
        operator = functools.partial(operator, feature_level="EXTENDED", **options)
        return jax.eval_shape(operator, *(jax.ShapeDtypeStruct((2,), dtype) for dtype in (x, scale)))

    for x, scale, output in itertools.product(*types("QuantizeLinear")):
        if scale != jnp.int32:
            assert result_type(jquant.quantize_linear, x, scale, output_dtype=output).dtype == output
    for x, scale, output in itertools.product(*types("DequantizeLinear")):
        assert result_type(jquant.dequantize_linear, x, scale, output_dtype=output).dtype == output


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2"])
def test_packed_integers(dtype):
    """ONNX packs a tensor as a whole; its last byte may be partially filled."""
    x = samples.integers(np.random.default_rng(0), jnp.dtype(dtype), 5, 9)
    tensor = onnx.numpy_helper.from_array(x)
    stored = np.frombuffer(tensor.raw_data, np.uint8)
    assert_equal(jquant.pack_integers(x.reshape(-1)), stored)
    assert_equal(jquant.unpack_integers(stored, dtype, size=x.size).reshape(x.shape), x)


def test_min_greater_than_max():
    """The case that is left out: ONNX's value, and that of DirectML's formula."""
    case = node_cases()["test_clip_min_greater_than_max"]
    (((x, low, high), (theirs,)),) = case.data_sets
    assert low > high
    np.testing.assert_array_equal(theirs, np.full_like(x, high))
    np.testing.assert_array_equal(jquant.clip(x, low, high), np.full_like(x, low))
