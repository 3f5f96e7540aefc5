"""ONNX's quantized operators, one node at a time, against onnxruntime, or against the reference where it has no kernel."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from support.saturation import need_exact_products

pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx
from jquant.cases import samples
from jquant.reference import linear as reference

from .quantized_nodes import Node, check, onnx

FLOAT32 = np.float32
TYPES = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8), (np.int8, np.uint8)]
GRANULARITIES = [(), (7,), (3, 7, 4), (3, 2, 60)]
OPTIONS = [{}, {"axis": 1}, {"axis": 2, "block_size": 16}, {"axis": 1, "block_size": 4}]


def scalar(x) -> np.ndarray:
    return np.asarray(FLOAT32(x))


def integers(rng: np.random.Generator, dtype, *sizes: int) -> np.ndarray:
    return np.asarray(samples.integers(rng, dtype, *sizes))


def scales(rng: np.random.Generator, dtype, sizes: tuple[int, ...]) -> np.ndarray:
    return np.asarray((10 ** rng.uniform(-2, 0, sizes)).astype(dtype))


@pytest.mark.parametrize("float_dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("dtype", "opsets"), [("uint8", (10, 13, 21, 25)), ("int8", (13, 23)), ("uint16", (21, 25)), ("int16", (21, 23))]
)
def test_quantize_and_dequantize(dtype, opsets, float_dtype):
    """Ties and their neighbours. From operator set 23 on, float16 is divided in float16."""
    rng, dtype = np.random.default_rng(0), np.dtype(dtype)
    limits = np.iinfo(dtype)
    for opset, (sizes, options) in itertools.product(opsets, zip(GRANULARITIES, OPTIONS, strict=True)):
        if (opset < 21 and len(sizes) > 1) or (opset < 13 and sizes) or (opset < 19 and float_dtype == np.float16):
            continue
        scale, zero_point = scales(rng, float_dtype, sizes), integers(rng, dtype, *sizes)
        step = float(scale.flat[0])
        ties = samples.near_ties(rng, 630, step, 2 * limits.min - 9, 2 * limits.max + 9)
        x = np.concatenate([ties, rng.normal(size=630) * step * limits.max]).clip(-60_000, 60_000)
        x = rng.permutation(x).reshape(3, 7, 60).astype(float_dtype)
        check("QuantizeLinear", x, scale, zero_point, opset=opset, **options)
        y = integers(rng, dtype, 3, 7, 60)
        check("DequantizeLinear", y, scale, zero_point, opset=opset, **options)
        if not sizes:
            check("DequantizeLinear", y, scale, opset=opset)


def test_all_16_bit_values():
    rng = np.random.default_rng(1)
    for dtype, microsoft in itertools.product((np.uint16, np.int16), (False, True)):
        x, scale = np.arange(2**16, dtype=np.uint16).view(dtype), scalar(0.013)
        Node("DequantizeLinear", x, scale, integers(rng, dtype), microsoft=microsoft).assert_equal(
            x, scale, integers(rng, dtype)
        )
        x = samples.near_ties(rng, 2**16, scale, -70_000, 70_000)
        zero_point = integers(rng, dtype)
        Node("QuantizeLinear", x, scale, zero_point, microsoft=microsoft).assert_equal(x, scale, zero_point)


def test_result_dtypes():
    """The dtypes from `output_dtype`, `precision` and the zero point."""
    rng = np.random.default_rng(2)
    x, scale = rng.normal(size=(5, 6)).astype(FLOAT32), scalar(0.01)
    check("QuantizeLinear", x, scale, opset=21)
    check("QuantizeLinear", x, scale, opset=21, output_dtype=onnx.TensorProto.INT16)
    half = rng.normal(size=5000).astype(np.float16) * 9
    for precision in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
        zero_point = integers(rng, np.int8)
        check("QuantizeLinear", half, np.asarray(np.float16(0.1)), zero_point, opset=25, precision=precision)


def test_narrow_integers():
    """As constants, because onnxruntime does not accept them as inputs."""
    import ml_dtypes

    rng = np.random.default_rng(3)
    for name, (sizes, options) in itertools.product(
        ("int4", "uint4", "int2", "uint2"), zip(GRANULARITIES, OPTIONS, strict=True)
    ):
        dtype = getattr(ml_dtypes, name)
        limits = ml_dtypes.iinfo(dtype)
        x, zero_point = (
            np.asarray(rng.integers(limits.min, limits.max + 1, size)).astype(dtype) for size in ((3, 7, 60), sizes)
        )
        operands = x, scales(rng, FLOAT32, sizes), zero_point
        Node("DequantizeLinear", *operands, constant=(0, 2), opset=25, **options).assert_equal(*operands)


@pytest.mark.parametrize("precision", [0, onnx.TensorProto.FLOAT16])
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"])
def test_narrow_floats(name, saturate, precision):
    """QuantizeLinear and DequantizeLinear in one graph, per tensor, per axis and per block."""
    rng, dtype = np.random.default_rng(5), jnp.dtype(name)
    element_type, make = onnx.helper.np_dtype_to_tensor_dtype(dtype), onnx.helper.make_tensor_value_info
    x = samples.wide_floats(rng, 3 * 7 * 60, 3).reshape(3, 7, 60)
    for sizes, options in zip(GRANULARITIES, OPTIONS, strict=True):
        nodes = [
            onnx.helper.make_node(
                "QuantizeLinear",
                ["x", "scale"],
                ["q"],
                output_dtype=element_type,
                saturate=saturate,
                **({"precision": precision} if precision else {}),
                **options,
            ),
            onnx.helper.make_node("DequantizeLinear", ["q", "scale"], ["y"], **options),
        ]
        inputs = [make("x", onnx.TensorProto.FLOAT, x.shape), make("scale", onnx.TensorProto.FLOAT, sizes)]
        graph = onnx.helper.make_graph(nodes, "graph", inputs, [make("y", onnx.TensorProto.FLOAT, x.shape)])
        model = jquant.onnx.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)]))
        scale = np.exp2(rng.integers(-3, 3, sizes)).astype(FLOAT32)
        axes = {key: value for key, value in options.items() if sizes}
        with np.errstate(over="ignore", invalid="ignore"):
            quotient = x / reference.broadcast_parameter(scale, x, axes.get("axis"), axes.get("block_size"))
            quotient = quotient.astype(np.float16) if precision else quotient
        narrow = reference.quantize_linear(quotient.astype(FLOAT32), FLOAT32(1), 0, dtype, saturate=bool(saturate))
        expected = reference.dequantize_linear(narrow, scale, **axes)
        np.testing.assert_array_equal(model(model.params, {"x": x, "scale": scale})["y"], expected)


def test_dynamic_quantize():
    """Ranges on both sides of zero and on one side, and ties; 120,000 elements in all."""
    rng, node = np.random.default_rng(4), None
    for number in range(30):
        low, high = [(-1, 1), (0, 1), (-1, 0), (0.5, 1), (-1, -0.5), (0, 0)][number % 6]
        step = float(samples.scales(rng, 1)[0])
        x = (rng.uniform(low, high, (40, 100)) * step * 255).astype(FLOAT32)
        x[:20] = samples.near_ties(rng, 2000, step, 0, 255).reshape(20, 100) * np.sign(high + low + 1e-3)
        node = node or Node("DynamicQuantizeLinear", x, outputs=3)
        node.assert_equal(x)


PRODUCTS = [  # the shapes of A, of B, and of the zero points of B
    ((30, 50), (50, 40), ()),
    ((30, 50), (50, 40), (40,)),
    ((2, 3, 50), (50, 4), ()),
    ((2, 3, 50), (2, 50, 4), (2, 1, 4)),
    ((2, 1, 3, 5), (4, 5, 2), ()),
    ((50,), (50, 4), ()),
    ((3, 50), (50,), ()),
    ((50,), (50,), ()),
    ((0, 5), (5, 3), ()),
]


@pytest.mark.gate
@pytest.mark.parametrize(("a_dtype", "b_dtype"), TYPES)
def test_matmul_integer(a_dtype, b_dtype):
    need_exact_products(a_dtype, b_dtype)
    rng = np.random.default_rng(5)
    for a_sizes, b_sizes, sizes in PRODUCTS:
        a, b = integers(rng, a_dtype, *a_sizes), integers(rng, b_dtype, *b_sizes)
        operands = a, b, integers(rng, a_dtype), integers(rng, b_dtype, *sizes)
        check("MatMulInteger", *operands)
        Node("MatMulInteger", *operands, constant=(1,)).assert_equal(*operands)
    check("MatMulInteger", a, b)


def test_zero_points_of_rows():
    """Zero points per row of A, for which onnxruntime has no kernel."""
    rng = np.random.default_rng(6)
    a, b, zero_point = integers(rng, np.uint8, 2, 3, 5), integers(rng, np.int8, 5, 4), integers(rng, np.uint8, 3, 1)
    for a_zero_point in (zero_point.reshape(3), zero_point, np.stack([zero_point, zero_point[::-1]])):
        columns = a_zero_point.reshape(*a_zero_point.shape[: a_zero_point.ndim - 2], 3, 1)
        expected = (a.astype(np.int32) - columns) @ b.astype(np.int32)
        for constant in ((), (1,)):
            model = load_node("MatMulInteger", a, b, a_zero_point, constant=constant)
            inputs = {"x0": a, "x2": a_zero_point} | ({} if constant else {"x1": b})
            np.testing.assert_array_equal(model(model.params, inputs)["y"], expected)


def load_node(operator: str, *operands: np.ndarray, constant=()) -> jquant.onnx.Model:
    """A model of one node that onnxruntime has no kernel for.

    Args:
      constant: the positions of operands that are initializers.
    """
    helper, names = onnx.helper, [f"x{index}" for index in range(len(operands))]
    types = [onnx.helper.np_dtype_to_tensor_dtype(x.dtype) for x in operands]
    inputs = [
        helper.make_tensor_value_info(names[i], types[i], x.shape) for i, x in enumerate(operands) if i not in constant
    ]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)
    output.type.tensor_type.shape.SetInParent()
    initializers = [onnx.numpy_helper.from_array(operands[i], names[i]) for i in constant]
    graph = helper.make_graph([helper.make_node(operator, names, ["y"])], "graph", inputs, [output], initializers)
    return jquant.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))


@pytest.mark.parametrize(("a_dtype", "b_dtype"), TYPES[:3])
def test_quantized_matmul(a_dtype, b_dtype):
    need_exact_products(a_dtype, b_dtype)
    rng = np.random.default_rng(7)
    for a_sizes, b_sizes, sizes in PRODUCTS[:5]:
        a_scale, b_scale = scales(rng, FLOAT32, ()), scales(rng, FLOAT32, sizes)
        y_scale = scalar(a_scale * b_scale.mean() * rng.uniform(50, 2000))
        a, a_zero_point = integers(rng, a_dtype, *a_sizes), integers(rng, a_dtype)
        b, b_zero_point = integers(rng, b_dtype, *b_sizes), integers(rng, b_dtype, *sizes)
        output = y_scale, integers(rng, a_dtype)
        check("QLinearMatMul", a, a_scale, a_zero_point, b, b_scale, b_zero_point, *output)


CONVOLUTIONS = [
    ((2, 3, 13, 11), (6, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 4, 12, 11), (6, 2, 5, 3), {"strides": [2, 3], "pads": [0, 2, 3, 1], "dilations": [2, 1], "group": 2}),
    ((2, 6, 8, 8), (6, 1, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2], "group": 6}),
    ((2, 6, 8, 8), (6, 1, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2], "group": 6}),
    ((2, 3, 8, 8), (6, 3, 3, 3), {"auto_pad": "VALID", "kernel_shape": [3, 3]}),
    ((2, 5, 20), (4, 5, 4), {"strides": [2], "pads": [3, 0]}),
    ((1, 3, 6, 7, 5), (4, 3, 3, 2, 3), {"pads": [1, 0, 1, 1, 1, 0]}),
]


@pytest.mark.gate
@pytest.mark.parametrize(("x_dtype", "w_dtype"), TYPES)
def test_integer_convolution(x_dtype, w_dtype):
    need_exact_products(x_dtype, w_dtype)
    rng = np.random.default_rng(8)
    for number, (sizes, filter_sizes, attributes) in enumerate(CONVOLUTIONS):
        zero_points = (integers(rng, x_dtype), integers(rng, w_dtype))[: 2 - number % 3]
        operands = integers(rng, x_dtype, *sizes), integers(rng, w_dtype, *filter_sizes), *zero_points
        check("ConvInteger", *operands, **attributes)


@pytest.mark.parametrize(("x_dtype", "w_dtype"), TYPES[:3])
def test_quantized_convolution(x_dtype, w_dtype):
    """With scales per filter or per tensor, with a bias or without."""
    need_exact_products(x_dtype, w_dtype)
    rng = np.random.default_rng(9)
    for number, (sizes, filter_sizes, attributes) in enumerate(CONVOLUTIONS):
        per_filter = filter_sizes[:1] if number % 2 else ()
        x_scale, w_scale = scales(rng, FLOAT32, ()), scales(rng, FLOAT32, per_filter)
        y_scale = scalar(x_scale * w_scale.mean() * rng.uniform(300, 5000))
        w_zero_point = np.broadcast_to(0 if w_dtype == np.int8 else integers(rng, w_dtype), per_filter).astype(w_dtype)
        x, x_zero_point = integers(rng, x_dtype, *sizes), integers(rng, x_dtype)
        w = integers(rng, w_dtype, *filter_sizes)
        bias = rng.integers(-3000, 3000, filter_sizes[0]).astype(np.int32)
        operands = x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, integers(rng, x_dtype)
        check("QLinearConv", *operands, *((bias,) if number // 2 % 2 else ()), **attributes)
