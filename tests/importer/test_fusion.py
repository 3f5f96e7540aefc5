"""qdq="fused": the operators that fusion substitutes, against jquant's operators called directly."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

import jquant.onnx  # noqa: E402
from jquant.onnx.fusing import fusion, qdq_patterns  # noqa: E402
from jquant.onnx.reading.reader import Reader  # noqa: E402

from .fusion_tables import BINARY, PASSED_THROUGH, UNARY  # noqa: E402
from .qdq_models import (  # noqa: E402
    EXTENDED,
    OUTPUT,
    SAME_SCALE,
    SCALES,
    WEIGHTS,
    check_as_written,
    check_fused,
    initializers,
    operand,
    parameters,
    qdq,
    qdq_model,
    quantized,
    random_bias,
    random_floats,
    random_weights,
    run_model,
    scale,
    zero_point,
)

pytestmark = pytest.mark.gate  # on the newest JAX alone


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("operator", UNARY)
def test_one_operand(operator, dtype):
    call, shape, function = UNARY[operator]
    x, arrays = random_floats(shape), initializers({"x": dtype, "y": dtype})
    if operator in ("Sigmoid", "Softmax"):
        arrays["y_scale"] = np.float32(1 / 256)
    expected = function(operand(x, "x", dtype), parameters("y", dtype))
    check_fused(f"{qdq('x')}r = {call}{OUTPUT}", {"x": x}, arrays, expected, {operator: 1})


@pytest.mark.parametrize("dtypes", [("uint8", "uint8", "uint8"), ("int8", "uint8", "int8"), ("uint8", "int8", "int8")])
@pytest.mark.parametrize("operator", BINARY)
def test_two_operands(operator, dtypes):
    call, x_shape, z_shape, function, options = BINARY[operator]
    x, z, types = random_floats(x_shape), random_floats(z_shape, "z"), dict(zip("xzy", dtypes, strict=True))
    nodes = f"{qdq('x')}{qdq('z')}r = {call}{OUTPUT}"
    operands = *operand(x, "x", types["x"]), *operand(z, "z", types["z"]), *parameters("y", types["y"])
    expected = function(*operands, output_dtype=types["y"], **options)
    check_fused(nodes, {"x": x, "z": z}, initializers(types), expected, {operator: 1})


def times_sigmoid(x, dtypes):
    """The nodes of ``x * sigmoid(x)`` and their arrays, and what the two operators compute."""
    arrays = initializers(dict(zip("xzy", dtypes, strict=True))) | {"z_scale": np.float32(1 / 256)}
    z = arrays["z_scale"], arrays["z_zero"]
    gate = jquant.quantized_linear_sigmoid(*operand(x, "x", dtypes[0]), *z)
    product = jquant.quantized_linear_multiply(
        *operand(x, "x", dtypes[0]), gate, *z, *parameters("y", dtypes[2]), output_dtype=dtypes[2]
    )
    return f"{qdq('x')}z = Sigmoid(xd)\n{qdq('z')}", arrays, gate, product


@pytest.mark.parametrize("product", ["Mul(xd, zd)", "Mul(zd, xd)"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_times_sigmoid(dtype, product):
    """Both operators are one table of their results for all integers, a parameter of the model."""
    x = random_floats((4, 40))
    nodes, arrays, _, expected = times_sigmoid(x, [dtype] * 3)
    nodes = f"{nodes}r = {product}{OUTPUT}"
    check_fused(nodes, {"x": x}, arrays, expected, {"Mul with Sigmoid": 1})
    model = jquant.onnx.load(qdq_model(nodes, {"x": x.shape}, arrays, {"y": expected.dtype}), qdq="fused")
    assert [(name, array.shape, array.dtype) for name, array in model.params.items() if name.endswith("/table")] == [
        ("y/table", (256,), expected.dtype)
    ]


def test_a_clamp_after_times_sigmoid():
    x = random_floats((4, 40))
    nodes, arrays, _, expected = times_sigmoid(x, ["uint8"] * 3)
    zero = arrays["y_zero"]
    nodes = f"{nodes}p = Mul(xd, zd)\nr = Relu(p){OUTPUT}"
    check_fused(nodes, {"x": x}, arrays, np.maximum(expected, zero), {"Mul with Sigmoid": 1, "Relu": 1})


def test_a_sigmoid_that_something_else_reads():
    x = random_floats((4, 40))
    nodes, arrays, gate, expected = times_sigmoid(x, ["uint8"] * 3)
    nodes = f"{nodes}r = Mul(xd, zd){OUTPUT}\nv = Identity(zq)"
    proto = qdq_model(nodes, {"x": x.shape}, arrays, {"y": np.uint8, "v": np.uint8})
    outputs, fused = run_model(proto, {"x": x}, "fused")
    assert fused == {"Mul with Sigmoid": 1, "Sigmoid": 1}
    np.testing.assert_array_equal(outputs["y"], expected)
    np.testing.assert_array_equal(outputs["v"], gate)


def test_times_sigmoid_of_another_type_is_two_operators():
    x = random_floats((4, 40))
    nodes, arrays, _, expected = times_sigmoid(x, ["uint8", "uint8", "int8"])
    check_fused(f"{nodes}r = Mul(xd, zd){OUTPUT}", {"x": x}, arrays, expected, {"Mul": 1, "Sigmoid": 1})


def test_the_sigmoid_of_another_value_is_two_operators():
    x, v = random_floats((4, 40)), random_floats((4, 40), "v")
    nodes, arrays, gate, _ = times_sigmoid(x, ["uint8"] * 3)
    arrays |= initializers({"v": "uint8"})
    z, y = (arrays["z_scale"], arrays["z_zero"]), parameters("y", "uint8")
    expected = jquant.quantized_linear_multiply(*operand(v, "v", "uint8"), gate, *z, *y)
    nodes = f"{qdq('v')}{nodes}r = Mul(vd, zd){OUTPUT}"
    check_fused(nodes, {"x": x, "v": v}, arrays, expected, {"Mul": 1, "Sigmoid": 1})


@pytest.mark.parametrize("operator", ["LeakyRelu", "Sigmoid"])
def test_tables_are_not_used_on_a_tpu(operator):
    """A TPU takes longer to look a number up than to compute it."""
    call, shape, _ = UNARY[operator]
    proto = qdq_model(f"{qdq('x')}r = {call}{OUTPUT}", {"x": shape}, initializers({"x": "uint8", "y": "uint8"}))
    model = jquant.onnx.load(proto, qdq="fused")
    program = jax.jit(model).trace(model.params, {"x": random_floats(shape)})
    gathers = {platform: "gather" in program.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "tpu")}
    assert gathers == {"cpu": True, "tpu": False}


@pytest.mark.parametrize(
    "nodes",
    ["r = LeakyRelu(xd)", "r = Sigmoid(xd)", f"z = Sigmoid(xd)\n{qdq('z')}r = Mul(xd, zd)"],
    ids=["LeakyRelu", "Sigmoid", "Mul with Sigmoid"],
)
def test_one_program_computes_the_tables_of_all_nodes(nodes, caplog):
    """A detector with a hundred of them would otherwise compile for half a minute while it is loaded."""

    def compiled(x_scale: float) -> list[str]:
        arrays = initializers({"x": "uint8", "y": "uint8", "z": "uint8"}) | {"x_scale": np.float32(x_scale)}
        proto = qdq_model(f"{qdq('x')}{nodes}{OUTPUT}", {"x": (4,)}, arrays)
        caplog.clear()
        with jax.log_compiles():
            model = jquant.onnx.load(proto, qdq="fused")
        assert "y/table" in model.params
        return [record.getMessage() for record in caplog.records if "XLA compilation" in record.getMessage()]

    compiled(0.05)
    assert compiled(0.07) == []


def test_concat():
    x, z = random_floats((2, 5)), random_floats((2, 7), "z")
    nodes = f"{qdq('x')}{qdq('z')}r = Concat <axis = -1> (xd, zd){OUTPUT}"
    operands = [operand(x, "x", "uint8"), operand(z, "z", "int8")]
    expected = jquant.quantized_linear_concat(operands, *parameters("y", "uint8"), axis=-1)
    arrays = initializers({"x": "uint8", "z": "int8", "y": "uint8"})
    check_fused(nodes, {"x": x, "z": z}, arrays, expected, {"Concat": 1})


@pytest.mark.parametrize("weights", WEIGHTS)
def test_matmul_with_weights(weights):
    x, (w, w_scale, w_zero, arrays, line) = random_floats((2, 4, 6)), random_weights((6, 5), 1, *weights)
    arrays |= initializers({"x": "uint8", "y": "int8"}) | {"y_scale": np.float32(0.4)}
    y_scale, y_zero = np.float32(0.4), zero_point("y", "int8")
    expected = jquant.quantized_linear_matmul(
        *operand(x, "x", "uint8"), w, w_scale, w_zero, y_scale, y_zero, feature_level=EXTENDED
    )
    nodes = f"{qdq('x')}{line}r = MatMul(xd, wd)"
    check_fused(f"{nodes}{OUTPUT}", {"x": x}, arrays, expected, {"MatMul": 1})
    model = jquant.onnx.load(qdq_model(f"{nodes}{OUTPUT}", {"x": x.shape}, arrays, {"y": np.int8}), qdq="fused")
    assert isinstance(model.params["w"], jquant.PackedMatrix)
    expected = jquant.matmul_integer_to_float(*operand(x, "x", "uint8"), w, w_scale, w_zero, feature_level=EXTENDED)
    check_fused(f"{nodes}\ny = Identity(r)", {"x": x}, arrays, expected, {"MatMul to float": 1})


@pytest.mark.parametrize("shapes", [((6,), (6, 5)), ((4, 6), (6,)), ((6,), (2, 6, 5))])
def test_matmul_of_vectors(shapes):
    """A vector is a row on the left and a column on the right."""
    x, z = random_floats(shapes[0]), random_floats(shapes[1], "z")
    nodes = f"{qdq('x')}{qdq('z')}r = MatMul(xd, zd){OUTPUT}"
    row, column = x.reshape(1, -1) if x.ndim == 1 else x, z.reshape(-1, 1) if z.ndim == 1 else z
    operands = *operand(row, "x", "uint8"), *operand(column, "z", "uint8"), *parameters("y", "uint8")
    product = jquant.quantized_linear_matmul(*operands, feature_level=EXTENDED)
    expected = product.reshape(np.matmul(x, z).shape)
    arrays = initializers({"x": "uint8", "z": "uint8", "y": "uint8"})
    inputs = {"x": x, "z": z}
    proto = qdq_model(nodes, {name: array.shape for name, array in inputs.items()}, arrays)
    outputs, fused = run_model(proto, inputs, "fused")
    assert fused == {"MatMul": 1}
    np.testing.assert_array_equal(outputs["y"], expected)


@one_in(3, ("weights", "transposed"), itertools.product(WEIGHTS, [False, True]), others="full")
def test_gemm(weights, transposed):
    """Weights that are transposed in the file are transposed once; a bias with the scale of the product is an integer."""
    x = random_floats((4, 6))
    w, w_scale, w_zero, arrays, line = random_weights((5, 6) if transposed else (6, 5), 0 if transposed else 1, *weights)
    b, bias_arrays, bias_line = random_bias(5, np.float32(SCALES["x"]) * w_scale)
    arrays |= bias_arrays | initializers({"x": "int8", "y": "uint8"}) | {"y_scale": np.float32(0.4)}
    matrix = w.T if transposed else w
    operands = *operand(x, "x", "int8"), matrix, w_scale, w_zero
    expected = jquant.quantized_gemm(*operands, b, np.float32(0.4), zero_point("y", "uint8"))
    nodes = f"{qdq('x')}{line}{bias_line}r = Gemm <transB = {int(transposed)}> (xd, wd, bd)"
    check_fused(f"{nodes}{OUTPUT}", {"x": x}, arrays, expected, {"Gemm": 1})
    float_bias = b.astype(np.float32) * arrays["b_scale"]
    expected = jquant.matmul_integer_to_float(*operands, float_bias, feature_level=EXTENDED)
    check_fused(f"{nodes}\ny = Identity(r)", {"x": x}, arrays, expected, {"Gemm to float": 1})


@pytest.mark.parametrize("weights", WEIGHTS)
def test_convolution(weights):
    x, (w, w_scale, w_zero, arrays, line) = random_floats((2, 4, 9)), random_weights((6, 2, 3), 0, *weights)
    b, bias_arrays, bias_line = random_bias(6, np.float32(SCALES["x"]) * w_scale)
    arrays |= bias_arrays | initializers({"x": "uint8", "y": "uint8"}) | {"y_scale": np.float32(0.4)}
    operands = *operand(x, "x", "uint8"), w, w_scale, w_zero
    options = {"strides": (2,), "padding": ((1, 2),), "groups": 2, "feature_level": EXTENDED}
    expected = jquant.quantized_linear_convolution(*operands, np.float32(0.4), zero_point("y", "uint8"), b, **options)
    nodes = f"{qdq('x')}{line}{bias_line}r = Conv <strides = [2], pads = [1, 2], group = 2> (xd, wd, bd)"
    check_fused(f"{nodes}{OUTPUT}", {"x": x}, arrays, expected, {"Conv": 1})
    float_bias = b.astype(np.float32) * arrays["b_scale"]
    expected = jquant.convolution_integer_to_float(*operands, float_bias, **options)
    check_fused(f"{nodes}\ny = Identity(r)", {"x": x}, arrays, expected, {"Conv to float": 1})


def test_a_bias_of_another_scale_is_added_in_float():
    x, (w, w_scale, _, arrays, line) = random_floats((2, 4, 9, 5)), random_weights((6, 4, 3, 3), 0, "int8", True, False)
    b, bias_arrays, bias_line = random_bias(6, np.float32(SCALES["x"]) * w_scale * np.float32(1.01))
    arrays |= bias_arrays | initializers({"x": "uint8", "y": "uint8"}) | {"y_scale": np.float32(0.4)}
    operands = *operand(x, "x", "uint8"), w, w_scale, None, b.astype(np.float32) * arrays["b_scale"]
    y = jquant.convolution_integer_to_float(*operands, feature_level=EXTENDED)
    expected = jquant.quantize_linear(y, np.float32(0.4), zero_point("y", "uint8"), feature_level=EXTENDED)
    nodes = f"{qdq('x')}{line}{bias_line}r = Conv(xd, wd, bd){OUTPUT}"
    check_fused(nodes, {"x": x}, arrays, expected, {"Conv to float": 1})


@pytest.mark.parametrize(
    ("clamp", "arrays", "bounds", "name"),
    [
        ("Relu(c)", {}, (0, np.inf), "Relu"),
        ("Clip(c, low, high)", {"low": np.float32(-1.3), "high": np.float32(2.2)}, (-1.3, 2.2), "Clip"),
        ("Clip(c, , high)", {"high": np.float32(2.2)}, (-np.inf, 2.2), "Clip"),
    ],
)
def test_clamps_after_an_operator(clamp, arrays, bounds, name):
    """The integers are clamped instead of the floats."""
    x, z, dtypes = random_floats((3, 50)), random_floats((3, 50), "z"), {"x": "uint8", "z": "uint8", "y": "uint8"}
    nodes = f"{qdq('x')}{qdq('z')}c = Add(xd, zd)\nr = {clamp}{OUTPUT}"
    added = jquant.quantized_linear_add(*operand(x, "x", "uint8"), *operand(z, "z", "uint8"), *parameters("y", "uint8"))
    low, high = quantized(np.float32(bounds), "y", "uint8")
    expected = jnp.clip(added, low, high)
    check_fused(nodes, {"x": x, "z": z}, arrays | initializers(dtypes), expected, {"Add": 1, name: 1})


def test_a_relu_that_saturation_implies_vanishes():
    x, z = random_floats((3, 50)), random_floats((3, 50), "z")
    arrays = initializers({"x": "uint8", "z": "uint8"}) | {"y_scale": scale("y"), "y_zero": np.uint8(0)}
    nodes = f"{qdq('x')}{qdq('z')}c = Add(xd, zd)\nr = Relu(c){OUTPUT}"
    expected = jquant.quantized_linear_add(*operand(x, "x", "uint8"), *operand(z, "z", "uint8"), scale("y"), np.uint8(0))
    check_fused(nodes, {"x": x, "z": z}, arrays, expected, {"Add": 1, "Relu": 1})
    proto = qdq_model(nodes, {"x": x.shape, "z": z.shape}, arrays)
    assert "clamp" not in str(jquant.onnx.load(proto, qdq="fused"))


@pytest.mark.parametrize("clamp", ["Relu(xd)", "Clip(xd, low, high)"])
def test_clamps_between_the_same_scales(clamp):
    """For every integer, clamping it gives the same bits as clamping the float."""
    x = (np.arange(-10, 266) - 119).astype(np.float32) * scale("x")
    arrays = initializers({"x": "uint8"}) | {"low": np.float32(-1.23), "high": np.float32(3.21)}
    nodes = f"{qdq('x')}r = {clamp}{SAME_SCALE}"
    check_as_written(nodes, {"x": x}, arrays, {clamp.split("(")[0]: 1})


def test_tables_are_complete():
    assert set(PASSED_THROUGH) == set(qdq_patterns.PASSED_THROUGH)
    assert {*UNARY, *BINARY, "Concat", "Gemm", "Conv"} == set(qdq_patterns.QUANTIZED)
    assert set(qdq_patterns.DEQUANTIZED) == {"Conv", "Gemm", "MatMul"}


def test_integers_are_stored_before_they_are_read():
    """Otherwise XLA:CPU computes them again for each reader, which changes the time but not the bits."""
    x, arrays = random_floats((3, 5)), initializers({"x": "uint8", "y": "uint8"})
    model = jquant.onnx.load(qdq_model(f"{qdq('x')}r = Add(xd, xd){OUTPUT}", {"x": x.shape}, arrays), qdq="fused")
    assert "optimization_barrier" in jax.jit(model).lower(model.params, {"x": x}).as_text()


def test_unknown_form():
    with pytest.raises(jquant.onnx.ModelError, match="qdq is 'int8'; it must be 'as_written' or 'fused'"):
        jquant.onnx.load(qdq_model("y = Identity(x)", {"x": (2,)}, {}, {"y": np.float32}), qdq="int8")


def test_subgraphs():
    """Fusion in the branches of an If, which read values of the surrounding graph."""
    then = f"{qdq('x')}r = Add(xd, xd){OUTPUT}".replace("y =", "o =")
    branch = qdq_model(then, {"x": (4, 6)}, {}, {"o": np.uint8}).graph
    del branch.input[:]
    proto = qdq_model(
        "y = Cast <to = 2> (x)", {"x": (4, 6)}, initializers({"x": "uint8", "y": "uint8"}) | {"c": np.array(True)}
    )
    proto.graph.node[0].CopyFrom(onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch))
    graph, fused = fusion.fused(Reader({"": 21}).graph(proto.graph), {})
    assert fused == {"Add": 2}
    for subgraph in graph.nodes[0].subgraphs.values():
        assert [node.operator for node in subgraph.nodes] == ["QuantizeLinear", "quantized_linear_add"]
    assert set(graph.initializers) == {"c", "x_scale", "x_zero", "y_scale", "y_zero"}
