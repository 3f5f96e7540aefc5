"""qdq="fused": every row of the table of integer forms, and every condition under which nothing is fused."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402
from jquant.onnx import fusion, qdq_patterns  # noqa: E402
from jquant.onnx.reader import Reader  # noqa: E402

pytestmark = pytest.mark.gate  # on the newest JAX alone

RNG = np.random.default_rng(18)
EXTENDED = jquant.FeatureLevel.EXTENDED
SCALES = {"x": 0.05, "z": 0.03, "y": 0.11}  # none of which a power of 2
ZERO_POINTS = {"x": 119, "z": 131, "y": 107}  # less 128 in int8


def scale(name: str) -> np.ndarray:
    return np.float32(SCALES[name])


def zero_point(name: str, dtype: str) -> np.ndarray:
    return np.array(ZERO_POINTS[name] - (128 if dtype == "int8" else 0), dtype)


def parameters(dtypes: dict[str, str]) -> dict[str, np.ndarray]:
    return {
        name: array
        for value, dtype in dtypes.items()
        for name, array in ((f"{value}_scale", scale(value)), (f"{value}_zero", zero_point(value, dtype)))
    }


def program(nodes: str, inputs: dict, arrays: dict, outputs: dict | None = None, version: int = 21) -> onnx.ModelProto:
    """Lines of nodes as a model of float inputs (name: shape), initializers, and outputs (name: element type)."""
    make, types = onnx.helper.make_tensor_value_info, {"y": np.uint8} if outputs is None else outputs
    parsed = [onnx.parser.parse_node(line.strip()) for line in nodes.strip().splitlines()]
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for name, dtype in types.items()}
    graph = onnx.helper.make_graph(
        parsed,
        "graph",
        [make(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [make(name, kind, None) for name, kind in kinds.items()],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    opset = [onnx.helper.make_opsetid("", version), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.shape_inference.infer_shapes(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10))


QUANTIZED = "{0}q = QuantizeLinear({0}, {0}_scale, {0}_zero)\n{0}d = DequantizeLinear({0}q, {0}_scale, {0}_zero)\n"
OUTPUT = "\ny = QuantizeLinear(r, y_scale, y_zero)"


def sample(shape, name: str = "x") -> np.ndarray:
    """Of the range that the integers have, and a little beyond it."""
    return (RNG.uniform(-140, 140, shape) * SCALES[name]).astype(np.float32)


def computed(proto: onnx.ModelProto, inputs: dict, qdq: str):
    """The outputs as arrays of NumPy, and what was fused."""
    model = jquant.onnx.load(proto, qdq=qdq)
    return {name: np.asarray(value) for name, value in jax.jit(model)(model.params, inputs).items()}, model.fused


def integers(array: np.ndarray, name: str, dtype: str) -> jax.Array:
    return jquant.quantize_linear(array, scale(name), zero_point(name, dtype), feature_level=EXTENDED)


def triple(array: np.ndarray, name: str, dtype: str) -> tuple:
    return integers(array, name, dtype), scale(name), zero_point(name, dtype)


def pair(name: str, dtype: str) -> tuple:
    return scale(name), zero_point(name, dtype)


def check_fused(nodes: str, inputs: dict, arrays: dict, expected, fused: dict, version: int = 21) -> None:
    """Fused, the output is `expected`, bit for bit; as written, it is at most one integer off."""
    shapes = {name: array.shape for name, array in inputs.items()}
    expected = np.asarray(expected)
    proto = program(nodes, shapes, arrays, {"y": expected.dtype}, version)
    (outputs, found), (written, nothing) = (computed(proto, inputs, kind) for kind in ("fused", "as_written"))
    assert (found, nothing) == (fused, {})
    assert outputs["y"].dtype == written["y"].dtype == expected.dtype
    np.testing.assert_array_equal(outputs["y"], expected)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(written["y"], expected, rtol=1e-5, atol=1e-5)
    else:
        assert len(np.unique(expected)) > 5
        np.testing.assert_allclose(written["y"].astype(int), expected.astype(int), rtol=0, atol=1)


def check_written(
    nodes: str, inputs: dict, arrays: dict, fused: dict | None = None, outputs=None, version: int = 21
) -> None:
    """All outputs, fused, have the bits that they have as written."""
    shapes = {name: array.shape for name, array in inputs.items()}
    proto = program(nodes, shapes, arrays, outputs, version)
    (actual, found), (expected, _) = (computed(proto, inputs, kind) for kind in ("fused", "as_written"))
    assert found == (fused or {})
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype
        np.testing.assert_array_equal(actual[name], array)


# One operand that has its scale, its zero point and its dtype, and an output that has others.
UNARY = {
    "Sigmoid": ("Sigmoid(xd)", (4, 40), lambda t, p: jquant.quantized_linear_sigmoid(*t, np.float32(1 / 256), p[1])),
    "Softmax": (
        "Softmax <axis = 1> (xd)",
        (3, 9, 2),
        lambda t, p: jquant.quantized_linear_softmax(*t, np.float32(1 / 256), p[1], axis=1),
    ),
    "LeakyRelu": (
        "LeakyRelu <alpha = 0.2> (xd)",
        (4, 40),
        lambda t, p: jquant.quantized_linear_leaky_relu(*t, *p, alpha=np.float32(0.2)),
    ),
    "GlobalAveragePool": (
        "GlobalAveragePool(xd)",
        (9, 3, 4),
        lambda t, p: jquant.quantized_linear_global_average_pool(*t, *p),
    ),
    "AveragePool": (
        "AveragePool <kernel_shape = [2, 3], strides = [1, 2], pads = [1, 0, 0, 1], count_include_pad = 1> (xd)",
        (2, 3, 5, 8),
        lambda t, p: jquant.quantized_linear_average_pool(
            *t, *p, window_sizes=(2, 3), strides=(1, 2), padding=((1, 0), (0, 1)), include_padding=True
        ),
    ),
}
BINARY = {
    "Add": ("Add(xd, zd)", (3, 5), (4, 3, 1), jquant.quantized_linear_add, {"feature_level": EXTENDED}),
    "Mul": ("Mul(xd, zd)", (3, 5), (4, 3, 1), jquant.quantized_linear_multiply, {}),
    "MatMul": ("MatMul(xd, zd)", (2, 4, 7), (7, 5), jquant.quantized_linear_matmul, {"feature_level": EXTENDED}),
}


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("operator", UNARY)
def test_one_operand(operator, dtype):
    call, shape, by_hand = UNARY[operator]
    x, arrays = sample(shape), parameters({"x": dtype, "y": dtype})
    if operator in ("Sigmoid", "Softmax"):
        arrays["y_scale"] = np.float32(1 / 256)
    expected = by_hand(triple(x, "x", dtype), pair("y", dtype))
    check_fused(f"{QUANTIZED.format('x')}r = {call}{OUTPUT}", {"x": x}, arrays, expected, {operator: 1})


@pytest.mark.parametrize("dtypes", [("uint8", "uint8", "uint8"), ("int8", "uint8", "int8"), ("uint8", "int8", "int8")])
@pytest.mark.parametrize("operator", BINARY)
def test_two_operands(operator, dtypes):
    call, x_shape, z_shape, by_hand, options = BINARY[operator]
    x, z, types = sample(x_shape), sample(z_shape, "z"), dict(zip("xzy", dtypes, strict=True))
    nodes = f"{QUANTIZED.format('x')}{QUANTIZED.format('z')}r = {call}{OUTPUT}"
    given = triple(x, "x", types["x"]), triple(z, "z", types["z"])
    expected = by_hand(*given[0], *given[1], *pair("y", types["y"]), output_dtype=types["y"], **options)
    check_fused(nodes, {"x": x, "z": z}, parameters(types), expected, {operator: 1})


def test_concat():
    x, z = sample((2, 5)), sample((2, 7), "z")
    nodes = f"{QUANTIZED.format('x')}{QUANTIZED.format('z')}r = Concat <axis = -1> (xd, zd){OUTPUT}"
    given = [triple(x, "x", "uint8"), triple(z, "z", "int8")]
    expected = jquant.quantized_linear_concat(given, *pair("y", "uint8"), axis=-1)
    arrays = parameters({"x": "uint8", "z": "int8", "y": "uint8"})
    check_fused(nodes, {"x": x, "z": z}, arrays, expected, {"Concat": 1})


# Weights: their dtype, whether their scales are per channel, and whether they have zero points.
WEIGHTS = [("int8", False, False), ("uint8", False, True), ("int8", True, False), ("uint8", True, True)]


def weights(shape, axis: int, dtype: str, per_channel: bool, has_zero_point: bool):
    """Integers, scales, zero points, and the line that dequantizes them."""
    limits, count = np.iinfo(dtype), shape[axis] if per_channel else ()
    w = RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    w_scale = RNG.uniform(0.01, 0.02, count).astype(np.float32)
    w_zero = (RNG.integers(limits.min, limits.max, count) if has_zero_point else np.zeros(count)).astype(dtype)
    arrays = {"w": w, "w_scale": w_scale, "w_zero": w_zero}
    line = f"wd = DequantizeLinear <axis = {axis}> (w, w_scale, w_zero)\n"
    return w, w_scale, (w_zero if has_zero_point else None), arrays, line


def bias(size: int, unit) -> tuple[np.ndarray, dict, str]:
    """Integers in units of a product, and the line that dequantizes them."""
    b = RNG.integers(-(2**12), 2**12, size).astype(np.int32)
    b_scale = np.asarray(unit, np.float32)
    line = "bd = DequantizeLinear <axis = 0> (b, b_scale, b_zero)\n"
    return b, {"b": b, "b_scale": b_scale, "b_zero": np.zeros(b_scale.shape, np.int32)}, line


@pytest.mark.parametrize("kind", WEIGHTS)
def test_matmul_with_weights(kind):
    x, (w, w_scale, w_zero, arrays, line) = sample((2, 4, 6)), weights((6, 5), 1, *kind)
    arrays |= parameters({"x": "uint8", "y": "int8"}) | {"y_scale": np.float32(0.4)}
    y_scale, y_zero = np.float32(0.4), zero_point("y", "int8")
    expected = jquant.quantized_linear_matmul(
        *triple(x, "x", "uint8"), w, w_scale, w_zero, y_scale, y_zero, feature_level=EXTENDED
    )
    nodes = f"{QUANTIZED.format('x')}{line}r = MatMul(xd, wd)"
    check_fused(f"{nodes}{OUTPUT}", {"x": x}, arrays, expected, {"MatMul": 1})
    model = jquant.onnx.load(program(f"{nodes}{OUTPUT}", {"x": x.shape}, arrays, {"y": np.int8}), qdq="fused")
    assert isinstance(model.params["w"], jquant.PackedMatrix)
    given = triple(x, "x", "uint8")
    expected = jquant.matmul_integer_to_float(*given, w, w_scale, w_zero, feature_level=EXTENDED)
    check_fused(f"{nodes}\ny = Identity(r)", {"x": x}, arrays, expected, {"MatMul to float": 1})


@pytest.mark.parametrize("shapes", [((6,), (6, 5)), ((4, 6), (6,)), ((6,), (2, 6, 5))])
def test_matmul_of_vectors(shapes):
    """A vector is a row on the left and a column on the right."""
    x, z = sample(shapes[0]), sample(shapes[1], "z")
    nodes = f"{QUANTIZED.format('x')}{QUANTIZED.format('z')}r = MatMul(xd, zd){OUTPUT}"
    row, column = x.reshape(1, -1) if x.ndim == 1 else x, z.reshape(-1, 1) if z.ndim == 1 else z
    given = *triple(row, "x", "uint8"), *triple(column, "z", "uint8"), *pair("y", "uint8")
    product = jquant.quantized_linear_matmul(*given, feature_level=EXTENDED)
    expected = product.reshape(np.matmul(x, z).shape)
    arrays = parameters({"x": "uint8", "z": "uint8", "y": "uint8"})
    inputs = {"x": x, "z": z}
    proto = program(nodes, {name: array.shape for name, array in inputs.items()}, arrays)
    outputs, fused = computed(proto, inputs, "fused")
    assert fused == {"MatMul": 1}
    np.testing.assert_array_equal(outputs["y"], expected)


@one_in(3, ("kind", "transposed"), itertools.product(WEIGHTS, [False, True]), others="full")
def test_gemm(kind, transposed):
    """Weights that the file has transposed are turned around once; a bias in units of the product is an integer."""
    x = sample((4, 6))
    w, w_scale, w_zero, arrays, line = weights((5, 6) if transposed else (6, 5), 0 if transposed else 1, *kind)
    b, more, bias_line = bias(5, np.float32(SCALES["x"]) * w_scale)
    arrays |= more | parameters({"x": "int8", "y": "uint8"}) | {"y_scale": np.float32(0.4)}
    matrix = w.T if transposed else w
    given = *triple(x, "x", "int8"), matrix, w_scale, w_zero
    expected = jquant.quantized_gemm(*given, b, np.float32(0.4), zero_point("y", "uint8"))
    nodes = f"{QUANTIZED.format('x')}{line}{bias_line}r = Gemm <transB = {int(transposed)}> (xd, wd, bd)"
    check_fused(f"{nodes}{OUTPUT}", {"x": x}, arrays, expected, {"Gemm": 1})
    real = b.astype(np.float32) * arrays["b_scale"]
    expected = jquant.matmul_integer_to_float(*given, real, feature_level=EXTENDED)
    check_fused(f"{nodes}\ny = Identity(r)", {"x": x}, arrays, expected, {"Gemm to float": 1})


@pytest.mark.parametrize("kind", WEIGHTS)
def test_convolution(kind):
    x, (w, w_scale, w_zero, arrays, line) = sample((2, 4, 9)), weights((6, 2, 3), 0, *kind)
    b, more, bias_line = bias(6, np.float32(SCALES["x"]) * w_scale)
    arrays |= more | parameters({"x": "uint8", "y": "uint8"}) | {"y_scale": np.float32(0.4)}
    given = *triple(x, "x", "uint8"), w, w_scale, w_zero
    options = {"strides": (2,), "padding": ((1, 2),), "groups": 2, "feature_level": EXTENDED}
    expected = jquant.quantized_linear_convolution(*given, np.float32(0.4), zero_point("y", "uint8"), b, **options)
    nodes = f"{QUANTIZED.format('x')}{line}{bias_line}r = Conv <strides = [2], pads = [1, 2], group = 2> (xd, wd, bd)"
    check_fused(f"{nodes}{OUTPUT}", {"x": x}, arrays, expected, {"Conv": 1})
    real = b.astype(np.float32) * arrays["b_scale"]
    expected = jquant.convolution_integer_to_float(*given, real, **options)
    check_fused(f"{nodes}\ny = Identity(r)", {"x": x}, arrays, expected, {"Conv to float": 1})


def test_a_bias_of_another_scale_is_added_in_float():
    x, (w, w_scale, _, arrays, line) = sample((2, 4, 9, 5)), weights((6, 4, 3, 3), 0, "int8", True, False)
    b, more, bias_line = bias(6, np.float32(SCALES["x"]) * w_scale * np.float32(1.01))
    arrays |= more | parameters({"x": "uint8", "y": "uint8"}) | {"y_scale": np.float32(0.4)}
    given = *triple(x, "x", "uint8"), w, w_scale, None, b.astype(np.float32) * arrays["b_scale"]
    real = jquant.convolution_integer_to_float(*given, feature_level=EXTENDED)
    expected = jquant.quantize_linear(real, np.float32(0.4), zero_point("y", "uint8"), feature_level=EXTENDED)
    nodes = f"{QUANTIZED.format('x')}{line}{bias_line}r = Conv(xd, wd, bd){OUTPUT}"
    check_fused(nodes, {"x": x}, arrays, expected, {"Conv to float": 1})


@pytest.mark.parametrize(
    ("clamp", "arrays", "bounds", "name"),
    [
        ("Relu(c)", {}, (0, np.inf), "Relu"),
        ("Clip(c, low, high)", {"low": np.float32(-1.3), "high": np.float32(2.2)}, (-1.3, 2.2), "Clip"),
        ("Clip(c, , high)", {"high": np.float32(2.2)}, (-np.inf, 2.2), "Clip"),
    ],
)
def test_clamps_behind_an_operator(clamp, arrays, bounds, name):
    """The integers are clamped, in the place of the sums."""
    x, z, dtypes = sample((3, 50)), sample((3, 50), "z"), {"x": "uint8", "z": "uint8", "y": "uint8"}
    nodes = f"{QUANTIZED.format('x')}{QUANTIZED.format('z')}c = Add(xd, zd)\nr = {clamp}{OUTPUT}"
    added = jquant.quantized_linear_add(*triple(x, "x", "uint8"), *triple(z, "z", "uint8"), *pair("y", "uint8"))
    low, high = integers(np.float32(bounds), "y", "uint8")
    expected = jnp.clip(added, low, high)
    check_fused(nodes, {"x": x, "z": z}, arrays | parameters(dtypes), expected, {"Add": 1, name: 1})


def test_a_relu_that_the_quantization_does_anyway_vanishes():
    x, z = sample((3, 50)), sample((3, 50), "z")
    arrays = parameters({"x": "uint8", "z": "uint8"}) | {"y_scale": scale("y"), "y_zero": np.uint8(0)}
    nodes = f"{QUANTIZED.format('x')}{QUANTIZED.format('z')}c = Add(xd, zd)\nr = Relu(c){OUTPUT}"
    expected = jquant.quantized_linear_add(*triple(x, "x", "uint8"), *triple(z, "z", "uint8"), scale("y"), np.uint8(0))
    check_fused(nodes, {"x": x, "z": z}, arrays, expected, {"Add": 1, "Relu": 1})
    proto = program(nodes, {"x": x.shape, "z": z.shape}, arrays)
    assert "clamp" not in str(jquant.onnx.load(proto, qdq="fused"))


@pytest.mark.parametrize("clamp", ["Relu(xd)", "Clip(xd, low, high)"])
def test_clamps_between_the_same_scales(clamp):
    """Integers are clamped: the result is the one as written, bit for bit, for every integer."""
    x = (np.arange(-10, 266) - 119).astype(np.float32) * scale("x")
    arrays = parameters({"x": "uint8"}) | {"low": np.float32(-1.23), "high": np.float32(3.21)}
    nodes = f"{QUANTIZED.format('x')}r = {clamp}\ny = QuantizeLinear(r, x_scale, x_zero)"
    check_written(nodes, {"x": x}, arrays, {clamp.split("(")[0]: 1})


SAME = "\ny = QuantizeLinear(r, x_scale, x_zero)"
INDICES, TO_BE_PADDED = np.array([2, 0, 2], np.int64), np.array([0, 0, 1, 1, 0, 0, 0, 2], np.int64)
# What passes integers through: the call, the arrays that it needs, and what NumPy makes of integers in its place.
PASSING = {
    "Concat": ("Concat <axis = 1> (xd, xd)", {}, lambda x: np.concatenate([x, x], 1)),
    "DepthToSpace": (
        "DepthToSpace <blocksize = 2> (xd)",
        {},
        lambda x: x.reshape(2, 2, 2, 1, 6, 8).transpose(0, 3, 4, 1, 5, 2).reshape(2, 1, 12, 16),
    ),
    "Expand": ("Expand(xd, a)", {"a": np.array([3, 1, 1, 1, 1])}, lambda x: np.broadcast_to(x, (3, *x.shape))),
    "Flatten": ("Flatten <axis = 2> (xd)", {}, lambda x: x.reshape(8, 48)),
    "Gather": ("Gather <axis = 2> (xd, a)", {"a": INDICES}, lambda x: np.take(x, INDICES, 2)),
    "GatherElements": (
        "GatherElements <axis = 1> (xd, a)",
        {"a": INDICES.reshape(1, 3, 1, 1)},
        lambda x: np.take_along_axis(x[:1, :, :1, :1], INDICES.reshape(1, 3, 1, 1), 1),
    ),
    "GatherND": ("GatherND(xd, a)", {"a": np.array([[1, 2], [0, 3]])}, lambda x: x[[1, 0], [2, 3]]),
    "Identity": ("Identity(xd)", {}, lambda x: x),
    "Max": ("Max(xd, xd)", {}, lambda x: x),
    "MaxPool": (
        "MaxPool <kernel_shape = [2, 3], strides = [2, 3], pads = [0, 1, 0, 0]> (xd)",
        {},
        lambda x: np.pad(x, [(0, 0)] * 3 + [(1, 0)]).reshape(2, 4, 3, 2, 3, 3).max((3, 5)),
    ),
    "Min": ("Min(xd, xd)", {}, lambda x: x),
    "Pad": (
        "Pad(xd, a)",
        {"a": TO_BE_PADDED},
        lambda x: np.pad(x, [(0, 0), (0, 0), (1, 0), (1, 2)], constant_values=ZERO_POINTS["x"]),
    ),
    "ReduceMax": ("ReduceMax <keepdims = 0> (xd, a)", {"a": np.array([1, 3])}, lambda x: x.max((1, 3))),
    "ReduceMin": ("ReduceMin(xd, a)", {"a": np.array([2])}, lambda x: x.min(2, keepdims=True)),
    "Reshape": ("Reshape(xd, a)", {"a": np.array([0, -1])}, lambda x: x.reshape(2, -1)),
    "Resize": (
        'Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (xd, , a)',
        {"a": np.array([1, 1, 2, 2], np.float32)},
        lambda x: x.repeat(2, 2).repeat(2, 3),
    ),
    "ReverseSequence": (
        "ReverseSequence <batch_axis = 0, time_axis = 1> (xd, a)",
        {"a": np.array([4, 1])},
        lambda x: np.stack([x[0, ::-1], x[1]]),
    ),
    "Slice": ("Slice(xd, a, b, c)", {"a": [1], "b": [9], "c": [3]}, lambda x: x[..., 1:]),
    "SpaceToDepth": (
        "SpaceToDepth <blocksize = 2> (xd)",
        {},
        lambda x: x.reshape(2, 4, 3, 2, 4, 2).transpose(0, 3, 5, 1, 2, 4).reshape(2, 16, 3, 4),
    ),
    "Split": ("Split <axis = 3> (xd, a)", {"a": [3, 5]}, lambda x: x[..., :3]),
    "Squeeze": ("Squeeze(xd, a)", {"a": np.zeros(0, np.int64)}, lambda x: x),
    "Tile": ("Tile(xd, a)", {"a": np.array([1, 2, 1, 1])}, lambda x: np.tile(x, (1, 2, 1, 1))),
    "Transpose": ("Transpose <perm = [2, 0, 3, 1]> (xd)", {}, lambda x: x.transpose(2, 0, 3, 1)),
    "Unsqueeze": ("Unsqueeze(xd, a)", {"a": np.array([1])}, lambda x: x[:, None]),
    "Where": ("Where(a, xd, xd)", {"a": np.array([True, False] * 4)}, lambda x: x),
}


def test_the_rows_of_the_table_are_all_here():
    assert set(PASSING) == set(qdq_patterns.PASSED_THROUGH)
    assert {*UNARY, *BINARY, "Concat", "Gemm", "Conv"} == set(qdq_patterns.QUANTIZED)
    assert set(qdq_patterns.DEQUANTIZED) == {"Conv", "Gemm", "MatMul"}


@pytest.mark.parametrize(
    ("operator", "dtype"), [*((each, "uint8") for each in PASSING), *((each, "int8") for each in ("MaxPool", "Min", "Pad"))]
)
def test_integers_pass_through(operator, dtype):
    """Between DequantizeLinear and QuantizeLinear of one scale there is nothing but the operator."""
    call, arrays, on_integers = PASSING[operator]
    x, results = sample((2, 4, 6, 8)), "r, s" if operator == "Split" else "r"
    given = parameters({"x": dtype}) | {name: np.asarray(array) for name, array in arrays.items()}
    nodes = f"{QUANTIZED.format('x')}{results} = {call}{SAME}"
    proto = program(nodes, {"x": x.shape}, given, {"y": dtype})
    (outputs, fused), (written, _) = (computed(proto, {"x": x}, kind) for kind in ("fused", "as_written"))
    assert fused == {operator: 1}
    np.testing.assert_array_equal(outputs["y"], written["y"])
    if not (operator in ("Pad", "MaxPool") and dtype == "int8"):  # whose padding NumPy has as uint8 above
        np.testing.assert_array_equal(outputs["y"], on_integers(np.asarray(integers(x, "x", dtype))))
    table = str(jquant.onnx.load(proto, qdq="fused"))
    assert "DequantizeLinear" not in table
    assert re.search(r"\bQuantizeLinear +1 ", table)


def test_dequantize_linear_moves_behind_what_passes_integers():
    """So that a product reads integers through it, and weights are transposed once."""
    x, (w, w_scale, _, arrays, line) = sample((2, 6, 3, 2)), weights((5, 6), 0, "int8", True, False)
    arrays |= parameters({"x": "uint8"}) | {"shape": np.array([2, 6, 6])}
    nodes = QUANTIZED.format("x") + line + "m = Reshape(xd, shape)\nt = Transpose <perm = [0, 2, 1]> (m)\n"
    nodes += "v = Transpose(wd)\ny = MatMul(t, v)"
    given, x_scale, x_zero = triple(x, "x", "uint8")
    moved = jnp.swapaxes(given.reshape(2, 6, 6), 1, 2)
    expected = jquant.matmul_integer_to_float(moved, x_scale, x_zero, w.T, w_scale, feature_level=EXTENDED)
    fused = {"MatMul to float": 1, "Reshape": 1, "Transpose": 1}
    check_fused(nodes, {"x": x}, arrays, expected, fused)
    model = jquant.onnx.load(program(nodes, {"x": x.shape}, arrays, {"y": np.float32}), qdq="fused")
    assert isinstance(model.params["w/transposed"], jquant.PackedMatrix)
    assert "w" not in model.params


def test_readers_decide_for_themselves():
    """Of a DequantizeLinear that an integer operator reads, and one of floats."""
    x = sample((4, 6))
    nodes = f"{QUANTIZED.format('x')}r = Add(xd, xd)\ny = QuantizeLinear(r, y_scale, y_zero)\nv = Exp(xd)"
    arrays, outputs = parameters({"x": "uint8", "y": "uint8"}), {"y": np.uint8, "v": np.float32}
    check_written(nodes, {"x": x}, arrays, {"Add": 1}, outputs)


ADD = f"{QUANTIZED.format('x')}r = Add(xd, xd){OUTPUT}"
MATMUL = f"{QUANTIZED.format('x')}r = MatMul(xd, wd){OUTPUT}"
SQUARE = {"w": np.arange(-8, 8, dtype=np.int8).reshape(4, 4), "w_scale": np.float32(0.1), "w_zero": np.int8(3)}
FOUR = RNG.uniform(0.1, 0.2, 4).astype(np.float32)
# What must not be fused: the nodes, the arrays that replace others, what is fused all the same, and the operator set.
KEPT = {
    "another reader of the sum": (f"{ADD}\nv = Exp(r)", {}, {}, 21),
    "an output in between": (f"{ADD}\nv = Identity(r)", {}, {}, 21),
    "an operand that is float": (f"{QUANTIZED.format('x')}v = Exp(xd)\nr = Add(xd, x){OUTPUT}", {}, {}, 21),
    "16 bits": (ADD, {"x_zero": np.uint16(30000), "y_zero": np.uint16(7), "x_scale": np.float32(0.001)}, {}, 21),
    "16 bits behind": (ADD, {"y_zero": np.int16(7)}, {}, 21),
    "scales of an input": (ADD.replace("x_scale", "u"), {}, {}, 21),
    "scales per channel": (
        ADD,
        {"x_scale": FOUR, "x_zero": np.array([1, 2, 3, 4], np.uint8)},
        {},
        21,
    ),
    "scales per channel behind": (ADD, {"y_scale": FOUR, "y_zero": np.array([1, 2, 3, 4], np.uint8)}, {}, 21),
    "weights with scales along the sum": (
        f"wd = DequantizeLinear <axis = 0> (w, w_scale, w_zero)\n{MATMUL}",
        {"w_scale": FOUR, "w_zero": np.zeros(4, np.int8)},
        {},
        21,
    ),
    "weights in blocks": (
        f"wd = DequantizeLinear <axis = 0, block_size = 2> (w, w_scale, w_zero)\n{MATMUL}",
        {"w_scale": np.stack([FOUR, FOUR]), "w_zero": np.zeros((2, 4), np.int8)},
        {},
        21,
    ),
    "zero points that are computed": (
        f"n = Neg(w_zero)\nwd = DequantizeLinear(w, w_scale, n)\n{MATMUL}",
        {},
        {},
        21,
    ),
    "a factor of Gemm": (
        f"wd = DequantizeLinear(w, w_scale, w_zero)\n{QUANTIZED.format('x')}r = Gemm <alpha = 0.5> (xd, wd){OUTPUT}",
        {},
        {},
        21,
    ),
    "another dtype": (f"{QUANTIZED.format('x')}r = Sigmoid(xd){OUTPUT}", {"y_zero": np.int8(0)}, {}, 21),
    "softmax of all dimensions": (f"{QUANTIZED.format('x')}r = Softmax <axis = 0> (xd){OUTPUT}", {}, {}, 12),
    "negative scales": (
        f"{QUANTIZED.format('x')}r = ReduceMax(xd){SAME}",
        {"x_scale": np.float32(-0.05)},
        {},
        13,
    ),
    "another scale behind": (
        f"{QUANTIZED.format('x')}r = Transpose(xd){OUTPUT}",
        {},
        {"Transpose": 1},
        21,
    ),
    "another zero point behind": (
        f"{QUANTIZED.format('x')}r = Transpose(xd)\ny = QuantizeLinear(r, x_scale, y_zero)",
        {},
        {"Transpose": 1},
        21,
    ),
    "two scales joined": (
        f"{QUANTIZED.format('x')}q = QuantizeLinear(x, y_scale, y_zero)\nd = DequantizeLinear(q, y_scale, y_zero)\n"
        "r = Max(xd, d)" + OUTPUT,
        {},
        {},
        21,
    ),
    "padding that no integer stands for": (
        f"{QUANTIZED.format('x')}r = Pad(xd, a, b){SAME}",
        {"a": np.array([0, 1, 0, 0]), "b": np.float32(0.123)},
        {},
        21,
    ),
}


@pytest.mark.parametrize("reason", KEPT)
def test_what_is_not_fused(reason):
    nodes, replaced, fused, version = KEPT[reason]
    x = sample((4, 4))
    arrays = parameters({"x": "uint8", "y": "uint8"}) | SQUARE | replaced
    outputs = {"y": arrays["x_zero" if SAME in nodes else "y_zero"].dtype}
    outputs |= {"v": np.float32} if "\nv = " in nodes else {}
    inputs = {"x": x} | ({"u": scale("x")} if "u)" in nodes or " u," in nodes else {})
    used = {name: array for name, array in arrays.items() if re.search(rf"\b{name}\b", nodes)}
    check_written(nodes, inputs, used, fused, outputs, version)


def test_pools_that_are_not_fused():
    """Those whose last window is not whole, those that tell where the largest was, and those of one dimension."""
    x = sample((2, 3, 5, 6))
    arrays = parameters({"x": "uint8", "y": "uint8"})
    nodes = f"{QUANTIZED.format('x')}r = AveragePool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (xd){OUTPUT}"
    check_written(nodes, {"x": x}, arrays)
    nodes = f"{QUANTIZED.format('x')}r, i = MaxPool <kernel_shape = [2, 2]> (xd){OUTPUT}"
    check_written(nodes, {"x": x}, arrays, outputs={"y": np.uint8, "i": np.int64})
    nodes = f"{QUANTIZED.format('x')}r = AveragePool <kernel_shape = [2]> (xd){OUTPUT}"
    check_written(nodes, {"x": x[0]}, arrays)


def test_integers_are_stored_before_they_are_read():
    """Or XLA:CPU computes them again for each reader, whose bits are the same, and whose time is not."""
    x, arrays = sample((3, 5)), parameters({"x": "uint8", "y": "uint8"})
    model = jquant.onnx.load(program(ADD, {"x": x.shape}, arrays), qdq="fused")
    assert "optimization_barrier" in jax.jit(model).lower(model.params, {"x": x}).as_text()


def test_another_word():
    with pytest.raises(jquant.onnx.ModelError, match="qdq is 'int8'; it must be 'as_written' or 'fused'"):
        jquant.onnx.load(program("y = Identity(x)", {"x": (2,)}, {}, {"y": np.float32}), qdq="int8")


def test_graphs_inside_nodes():
    """The branches of an If, which read what is around them."""
    then = f"{QUANTIZED.format('x')}r = Add(xd, xd){OUTPUT}".replace("y =", "o =")
    branch = program(then, {"x": (4, 6)}, {}, {"o": np.uint8}).graph
    del branch.input[:]
    proto = program("y = Cast <to = 2> (x)", {"x": (4, 6)}, parameters({"x": "uint8", "y": "uint8"}) | {"c": np.array(True)})
    proto.graph.node[0].CopyFrom(onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch))
    graph, fused = fusion.fused(Reader({"": 21}).graph(proto.graph), {})
    assert fused == {"Add": 2}
    for subgraph in graph.nodes[0].subgraphs.values():
        assert [node.operator for node in subgraph.nodes] == ["QuantizeLinear", "quantized_linear_add"]
    assert set(graph.initializers) == {"c", "x_scale", "x_zero", "y_scale", "y_zero"}
