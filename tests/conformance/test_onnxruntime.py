"""The operators of DirectML and onnxruntime against onnxruntime with its optimisations off, bit for bit.

It has no kernels for uint32 DequantizeLinear, int32 QuantizeLinear, (u)int16 Clip and per-row A zero points, wraps
int32 differences, and takes a float16 infinity to the lowest integer: `tests/operators/` compares those with
NumPy.
"""

import functools
import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.programs import together, with_packed_weights
from support.sampling import one_in

import jquant
from jquant import reference
from jquant.cases import samples

from .graph import Graph, onnx, run

FLOAT32 = np.float32
PAIRS = np.stack(np.meshgrid(np.arange(256), np.arange(256), indexing="ij")).reshape(2, -1)


def every_value(dtype, rng: np.random.Generator, count: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    if limits.bits <= 16:
        return np.arange(limits.min, limits.max + 1).astype(dtype)
    return rng.integers(limits.min // 2, limits.max // 2, count, dtype)


@pytest.mark.parametrize("scale_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32])
def test_dequantize_linear(dtype, scale_dtype):
    rng = np.random.default_rng(0)
    x = every_value(dtype, rng, 2**16)
    limits = np.iinfo(dtype)
    for scale in samples.scales(rng, 100).astype(scale_dtype):
        scale = -scale if scale > 1 else scale
        zero_point = dtype(rng.integers(limits.min // 2, limits.max // 2))
        np.testing.assert_array_equal(
            jquant.dequantize_linear(x, scale, zero_point), run("DequantizeLinear", x, scale, zero_point)
        )
        np.testing.assert_array_equal(jquant.dequantize_linear(x, scale), run("DequantizeLinear", x, scale))


@pytest.mark.parametrize("input_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantize_linear(dtype, input_dtype):
    rng = np.random.default_rng(1)
    limits = np.iinfo(dtype)
    for scale in samples.scales(rng, 100).astype(input_dtype):
        x = np.concatenate([samples.near_ties(rng, 4096, scale, -300, 300), samples.wide_floats(rng, 4096)])
        with np.errstate(over="ignore"):
            x = x[~np.isnan(x)].astype(input_dtype)
        x = x if input_dtype == np.float32 else x[np.isfinite(x)]
        zero_point = rng.integers(limits.min, limits.max, (), dtype, endpoint=True)
        np.testing.assert_array_equal(
            jquant.quantize_linear(x, scale, zero_point), run("QuantizeLinear", x, scale, zero_point)
        )


def test_quantize_linear_along_an_axis():
    rng = np.random.default_rng(2)
    x = samples.near_ties(rng, 3 * 50 * 40, 0.5, -200, 200).reshape(3, 50, 40)
    scale, zero_point = samples.scales(rng, 50), rng.integers(-100, 100, 50, np.int8)
    theirs = run("QuantizeLinear", x, scale, zero_point, axis=1)
    np.testing.assert_array_equal(jquant.quantize_linear(x, scale, zero_point, axis=1), theirs)
    shape = (1, 50, 1)
    np.testing.assert_array_equal(jquant.quantize_linear(x, scale.reshape(shape), zero_point.reshape(shape)), theirs)


SIZES = 6, 70, 300
GRANULARITIES = {  # the sizes of the scales, and which of them they are
    (): {},
    (70,): {"axis": 1},
    (6, 70, 10): {"axis": 2, "block_size": 32},  # the last block is partial
    (6, 5, 300): {"axis": 1, "block_size": 14},
    (1, 70, 300): {"axis": 0, "block_size": 7},  # as is the only one here
}


def run_linear(op: str, x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, dtype, **attributes) -> np.ndarray:
    """QuantizeLinear or DequantizeLinear of integers that come in and go out as int32: NumPy has none of 4 and 2 bits."""
    inputs = {"x": x, "scale": scale, "zero_point": zero_point.astype(np.int32)}
    is_quantize = op == "QuantizeLinear"
    inputs["x"] = x if is_quantize else x.astype(np.int32)
    narrow = {"to": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}
    wide = {"to": onnx.TensorProto.INT32 if is_quantize else onnx.helper.np_dtype_to_tensor_dtype(scale.dtype)}
    return Graph(
        *(() if is_quantize else [("Cast", ["x"], ["narrow_x"], narrow)]),
        ("Cast", ["zero_point"], ["narrow_zero_point"], narrow),
        (op, ["x" if is_quantize else "narrow_x", "scale", "narrow_zero_point"], ["y"], attributes),
        ("Cast", ["y"], ["output"], wide),
        opset=25,
        **inputs,
    )(**inputs)


@pytest.mark.parametrize("float_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dtype", ["int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16"])
class TestGranularity:
    """Per tensor, axis and block. onnxruntime makes the lowest integer of quotients from 2**31 on: they are left out."""

    def operands(self, rng, dtype, float_dtype):
        """Scales and zero points for each granularity."""
        for sizes in GRANULARITIES:
            scale = np.maximum(samples.scales(rng, np.prod(sizes, dtype=int)), FLOAT32(1e-2)).astype(float_dtype)
            yield scale.reshape(sizes), samples.integers(rng, jnp.dtype(dtype), *sizes)

    def call(self, operator, x, operands, **options):
        """All granularities, as one program."""
        options["feature_level"] = "EXTENDED"

        @jax.jit
        def program(x, operands):
            return [
                operator(x, *pair, **granularity, **options)
                for pair, granularity in zip(operands, GRANULARITIES.values(), strict=True)
            ]

        return program(x, operands)

    def test_dequantize_linear(self, dtype, float_dtype):
        rng = np.random.default_rng(8)
        x, operands = samples.integers(rng, jnp.dtype(dtype), *SIZES), [*self.operands(rng, dtype, float_dtype)]
        ours = self.call(jquant.dequantize_linear, x, operands)
        for actual, pair, granularity in zip(ours, operands, GRANULARITIES.values(), strict=True):
            theirs = run_linear("DequantizeLinear", x, *pair, dtype, **granularity)
            np.testing.assert_array_equal(actual, theirs, str(granularity), strict=True)

    def test_quantize_linear(self, dtype, float_dtype):
        rng = np.random.default_rng(9)
        count, limits = np.prod(SIZES, dtype=int), jnp.iinfo(dtype)
        x = samples.near_ties(rng, count // 2, 0.5, 2 * limits.min - 9, 2 * limits.max + 9)
        wide = np.nan_to_num(samples.wide_floats(rng, count - count // 2))
        x = rng.permutation(np.concatenate([x, wide])).clip(-60_000, 60_000).astype(float_dtype).reshape(SIZES)
        operands = [*self.operands(rng, dtype, float_dtype)]
        ours = self.call(jquant.quantize_linear, x, operands)
        for actual, pair, granularity in zip(ours, operands, GRANULARITIES.values(), strict=True):
            # Without it onnxruntime divides float16 in float16, from 1.32 on: ONNX leaves it to the type of the scale.
            theirs = run_linear("QuantizeLinear", x, *pair, dtype, precision=onnx.TensorProto.FLOAT, **granularity)
            np.testing.assert_array_equal(np.asarray(actual).astype(np.int32), theirs, str(granularity))


def test_dynamic_quantize_linear():
    """Its three outputs: of values on both sides of zero or on one, of any magnitude, ties, and of zeros."""
    rng = np.random.default_rng(10)
    quantize, graph = jax.jit(jquant.dynamic_quantize_linear), None
    for number in range(300):
        low, high = [(-1, 1), (0, 1), (-1, 0), (0.5, 1), (-1, -0.5), (0, 0)][number % 6]
        scale = samples.scales(rng, 4)[number % 4]
        x = (rng.uniform(low, high, 10_000) * scale).astype(FLOAT32)
        if number % 2:  # the scale is that of the ties
            x[:5000] = samples.near_ties(rng, 5000, scale, 0, 255) + x.min()
            x[:2] = x.min(), x.min() + 255 * scale
        graph = graph or Graph(("DynamicQuantizeLinear", ["x"], ["output", "scale", "zero_point"], {}), x=x)
        theirs = graph.session.run(["output", "scale", "zero_point"], {"x": x})
        for ours, expected in zip(quantize(x), theirs, strict=True):
            np.testing.assert_array_equal(ours, expected, strict=True)


@pytest.mark.parametrize("output_dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("b_dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("a_dtype", [np.int8, np.uint8])
def test_quantized_linear_add(a_dtype, b_dtype, output_dtype):
    """All 65,536 pairs: DequantizeLinear twice, Add, QuantizeLinear."""
    rng = np.random.default_rng(3)
    count = 200
    inputs = {"a": PAIRS[0].astype(a_dtype), "b": PAIRS[1].astype(b_dtype)}
    graph, add = None, jax.jit(jquant.quantized_linear_add)
    for a_scale, b_scale, output_scale in samples.scales(rng, 3 * count).reshape(count, 3):
        named = inputs | {
            "a_scale": np.asarray(a_scale),
            "b_scale": np.asarray(b_scale),
            "output_scale": np.asarray(np.maximum(output_scale, np.maximum(a_scale, b_scale) / 4)),
        }
        for name, dtype in (("a", a_dtype), ("b", b_dtype), ("output", output_dtype)):
            limits = np.iinfo(dtype)
            named[f"{name}_zero_point"] = rng.integers(limits.min, limits.max, (), dtype, endpoint=True)
        graph = graph or Graph(
            ("DequantizeLinear", ["a", "a_scale", "a_zero_point"], ["a_value"], {}),
            ("DequantizeLinear", ["b", "b_scale", "b_zero_point"], ["b_value"], {}),
            ("Add", ["a_value", "b_value"], ["output_value"], {}),
            ("QuantizeLinear", ["output_value", "output_scale", "output_zero_point"], ["output"], {}),
            **named,
        )
        ours = add(*(named[f"{tensor}{part}"] for tensor in "ab" for part in ("", "_scale", "_zero_point")),
                   named["output_scale"], named["output_zero_point"])  # fmt: skip
        np.testing.assert_array_equal(ours, graph(**named), str(named))


MICROSOFT = {"domain": "com.microsoft"}
ONNX_TYPES = {"tensor(float)": "FLOAT32", "tensor(int8)": "INT8", "tensor(uint8)": "UINT8"}


def with_ties(rng, scale, width):
    """An output scale that spreads `width` steps of `scale`; that and many ties, where it is one of a few powers of two."""
    return np.float32(scale * width) if rng.random() < 0.75 else np.float32(scale * np.exp2(np.round(np.log2(width))))


@pytest.mark.parametrize("b_dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("a_dtype", [np.int8, np.uint8])
def test_quantized_linear_multiply(a_dtype, b_dtype):
    """All 65,536 pairs: the formula of the document, node by node."""
    rng = np.random.default_rng(8)
    inputs = {"a": PAIRS[0].astype(a_dtype), "b": PAIRS[1].astype(b_dtype)}
    graph, multiply = None, jax.jit(jquant.quantized_linear_multiply)
    for named in multiplications(rng, 100, inputs, a_dtype):
        graph = graph or Graph(
            *[
                ("Cast", [name], [f"{name}_integer"], {"to": onnx.TensorProto.INT32})
                for name in ("a", "a_zero_point", "b", "b_zero_point")
            ],
            *[("Sub", [f"{x}_integer", f"{x}_zero_point_integer"], [f"{x}_offset"], {}) for x in "ab"],
            ("Mul", ["a_offset", "b_offset"], ["product"], {}),
            ("Cast", ["product"], ["value"], {"to": onnx.TensorProto.FLOAT}),
            ("Mul", ["a_scale", "b_scale"], ["scale"], {}),
            ("Mul", ["value", "scale"], ["output_value"], {}),
            ("QuantizeLinear", ["output_value", "output_scale", "output_zero_point"], ["output"], {}),
            **named,
        )
        np.testing.assert_array_equal(multiply(*in_order(named)), graph(**named), str(named))


def multiplications(rng, count, inputs, output_dtype):
    """`inputs` with random scales and zero points, of products that spread over the output's range or beyond it."""
    for a_scale, b_scale in samples.scales(rng, 2 * count).reshape(count, 2):
        named = inputs | {
            "a_scale": np.asarray(a_scale),
            "b_scale": np.asarray(b_scale),
            "output_scale": np.asarray(with_ties(rng, a_scale * b_scale, rng.uniform(3, 600))),
        }
        for name, dtype in (("a", inputs["a"].dtype), ("b", inputs["b"].dtype), ("output", output_dtype)):
            named[f"{name}_zero_point"] = samples.integers(rng, dtype)
        yield named


def in_order(named):
    tensors = [named[f"{tensor}{part}"] for tensor in "ab" for part in ("", "_scale", "_zero_point")]
    return *tensors, named["output_scale"], named["output_zero_point"]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantized_linear_multiply_of_other_roundings(dtype):
    """The kernel multiplies with one ratio and adds the zero point before rounding; other nodes round in other places."""
    rng = np.random.default_rng(9)
    inputs = {"a": PAIRS[0].astype(dtype), "b": PAIRS[1].astype(dtype)}
    kernel = nodes = None
    count, of_kernel, of_nodes = 0, 0, 0
    for named in multiplications(rng, 100, inputs, dtype):
        order = [*("a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point"), "output_scale", "output_zero_point"]
        kernel = kernel or Graph(("QLinearMul", order, ["output"], MICROSOFT), **named)
        nodes = nodes or Graph(
            ("DequantizeLinear", ["a", "a_scale", "a_zero_point"], ["a_value"], {}),
            ("DequantizeLinear", ["b", "b_scale", "b_zero_point"], ["b_value"], {}),
            ("Mul", ["a_value", "b_value"], ["output_value"], {}),
            ("QuantizeLinear", ["output_value", "output_scale", "output_zero_point"], ["output"], {}),
            **named,
        )
        ours, theirs = jquant.quantized_linear_multiply(*in_order(named)), kernel(**named)
        product = np.multiply(*(named[x].astype(np.int32) - named[f"{x}_zero_point"] for x in "ab"))
        ratio = named["a_scale"] * named["b_scale"] / named["output_scale"]
        value = np.rint(product.astype(FLOAT32) * ratio + FLOAT32(named["output_zero_point"]))
        np.testing.assert_array_equal(theirs, reference.saturate(value, dtype))
        count += theirs.size
        of_kernel += np.count_nonzero(theirs != ours)
        of_nodes += np.count_nonzero(nodes(**named) != ours)
        assert np.max(abs(theirs.astype(int) - np.asarray(ours))) <= 1
    assert 0 < of_kernel < count / 100
    assert 0 < of_nodes < count / 1000


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantized_linear_leaky_relu(dtype):
    """All 256 values."""
    rng, count = np.random.default_rng(10), 2000
    x = np.arange(256).astype(dtype)
    for alpha in (0.01, 0.1, 0.25, -0.5, 1.7):
        sets = []
        for x_scale, output_scale in samples.scales(rng, 2 * count).reshape(count, 2):
            if rng.random() < 0.5:
                output_scale = with_ties(rng, x_scale, rng.uniform(0.3, 3))
            sets.append((x_scale, samples.integers(rng, dtype), output_scale, samples.integers(rng, dtype)))
        rectify = functools.partial(jquant.quantized_linear_leaky_relu, x, alpha=alpha)
        assert_every_set_equal(rectify, sets, lambda *operands: (x, *operands), "QLinearLeakyRelu", alpha=alpha)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantized_linear_concat(dtype):
    """All 256 values in each of two; where one has the quantization of the output, onnxruntime copies it."""
    rng, count = np.random.default_rng(11), 2000
    x = np.arange(256).astype(dtype)
    sets = []
    for scales in samples.scales(rng, 3 * count).reshape(count, 3):
        a, b, output = zip(scales, samples.integers(rng, dtype, 3), strict=True)
        sets.append((*(a if rng.random() < 0.25 else output), *a, *b))

    def join(output_scale, output_zero_point, a_scale, a_zero_point, b_scale, b_zero_point):
        triples = [(x, a_scale, a_zero_point), (x, b_scale, b_zero_point)]
        return jquant.quantized_linear_concat(triples, output_scale, output_zero_point, axis=0)

    def inputs(output_scale, output_zero_point, a_scale, a_zero_point, b_scale, b_zero_point):
        return output_scale, output_zero_point, x, a_scale, a_zero_point, x, b_scale, b_zero_point

    assert_every_set_equal(join, sets, inputs, "QLinearConcat", axis=0)


def assert_every_set_equal(function, sets, inputs, op, **attributes):
    """`function` of each set of scalars, all by one program, and what one node of onnxruntime makes of its inputs."""
    outputs = jax.jit(jax.vmap(function))(*map(np.stack, zip(*sets, strict=True)))
    graph = None
    for ours, operands in zip(np.asarray(outputs), sets, strict=True):
        named = {f"input{index}": np.asarray(value) for index, value in enumerate(inputs(*operands))}
        graph = graph or Graph((op, list(named), ["output"], MICROSOFT | attributes), **named)
        np.testing.assert_array_equal(ours, graph(**named), str(operands))


@pytest.mark.parametrize("operator", ["multiply", "concat", "leaky_relu", "sigmoid", "softmax", "global_average_pool"])
def test_table(operator):
    """The descriptor has the tensors of onnxruntime's own schema, their data types, and which of them are optional.

    Two zero points that the schema requires may be missing here, and are 0 then.
    """
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    module = importlib.import_module(f"jquant.operators.quantized_linear_{operator}")
    descriptor = module._descriptor(0) if operator == "concat" else module._DESCRIPTOR
    schema = next(x for x in get_all_operator_schema() if (x.domain, x.name) == ("com.microsoft", descriptor.operator))
    types = {x.type_param_str: x.allowed_type_strs for x in schema.type_constraints}

    def rows(formals):
        for formal in formals:
            allowed = types.get(formal.typeStr, [formal.typeStr])
            yield formal.name.lower(), formal.option.name == "Optional", {ONNX_TYPES[name] for name in allowed}

    theirs, ours = [*rows(schema.inputs), *rows(schema.outputs)], []
    for tensor in descriptor.table:
        ours.append((tensor.name.lower(), tensor.kind == "Optional input", set(tensor.data_types.split())))
    if operator == "concat":  # one row stands for all three of each input, and no zero point is optional
        theirs.remove(("inputs", False, {"FLOAT32", "INT8", "UINT8"}))
        ours = [(name, False, data_types) for name, _, data_types in ours if not name.startswith("inputs[0]")]
    also_optional = {"softmax": {"y_zero_point"}, "global_average_pool": {"x_zero_point", "y_zero_point"}}.get(
        operator, set()
    )
    assert ours == [(name, optional or name in also_optional, data_types) for name, optional, data_types in theirs]


SHAPES = [((), 1, 1, 1), ((), 1, 300, 77), ((), 16, 64, 32), ((), 65, 129, 31), ((3,), 7, 40, 9), ((2, 3), 5, 6, 7)]


@pytest.mark.parametrize("b_dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("a_dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("saturated", [False, True])
def test_matmul_integer(a_dtype, b_dtype, saturated):
    """Scalar zero points for both, and one per column of B."""
    rng = np.random.default_rng(4)

    def matrix(dtype, *shape):
        limits = np.iinfo(dtype)
        if saturated:
            return rng.choice(np.array([limits.min, limits.max], dtype), shape)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)

    calls, theirs = [], []
    for batch, m, k, n in SHAPES:
        a, b = matrix(a_dtype, *batch, m, k), matrix(b_dtype, *batch, k, n)
        a_zero_point = matrix(a_dtype, 1)[0]
        with_zero_points = [(a, b, a_zero_point, matrix(b_dtype, 1)[0])]
        if not batch:
            with_zero_points.append((a, b, a_zero_point, matrix(b_dtype, n)))
        for operands in ((a, b), *with_zero_points):
            calls.append((jquant.matmul_integer, operands))
            theirs.append(run("MatMulInteger", *operands))
    for ours, expected in zip(together(calls), theirs, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_matmul_integer_wraps():
    a, b = np.full((1, 140_000), 255, np.uint8), np.full((140_000, 1), 255, np.uint8)
    assert jquant.matmul_integer(a, b) == run("MatMulInteger", a, b) == 513_565_408


FUSED_SHAPES = [*SHAPES, ((), 500, 257, 600)]


class Quantized:
    """Random operands of a fused product: B's scale and zero point per tensor or per column."""

    def __init__(self, rng, a_dtype, b_dtype, batch, m, k, n, per_column):
        def integers(dtype, *shape):
            limits = np.iinfo(dtype)
            return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)

        self.a, self.b = integers(a_dtype, *batch, m, k), integers(b_dtype, *batch, k, n)
        self.a_scale = samples.scales(rng, 1)[0]
        self.a_zero_point = integers(a_dtype)
        sizes = (n,) if per_column else ()
        self.b_scale = np.asarray(samples.scales(rng, n)[: n if per_column else 1].reshape(sizes))
        self.b_zero_point = integers(b_dtype, *sizes)
        self.spread = max(1, float(np.std(self.a @ self.b.astype(np.float64)))) * self.a_scale * self.b_scale.mean()


TYPES_OF_PRODUCTS = [*itertools.product((np.int8, np.uint8), repeat=2)]
# For int8 x uint8, the operators that quantize their result have no kernel in onnxruntime.
with_kernel = one_in(2, ("a_dtype", "b_dtype"), [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)])


def assert_plain_and_packed_equal(function, operands, theirs):
    """The function of each tuple of operands, with plain and with packed weights."""
    ours = together([(function, given) for given in [*operands, *with_packed_weights(operands)]])
    for actual, expected in zip(ours, theirs * 2, strict=True):
        np.testing.assert_array_equal(actual, expected)


@with_kernel
def test_quantized_linear_matmul(a_dtype, b_dtype):
    """QLinearMatMul: the output of A's type, in and out of saturation."""
    rng = np.random.default_rng(6)
    for width in (3, 30, 300):
        operands, theirs = [], []
        for (batch, m, k, n), per_column in itertools.product(FUSED_SHAPES, (False, True)):
            if batch and per_column:
                continue  # onnxruntime has no kernel
            p = Quantized(rng, a_dtype, b_dtype, batch, m, k, n, per_column)
            output = np.float32(p.spread / width), samples.integers(rng, a_dtype)
            operands.append((p.a, p.a_scale, p.a_zero_point, p.b, p.b_scale, p.b_zero_point, *output))
            theirs.append(run("QLinearMatMul", *operands[-1]))
        assert_plain_and_packed_equal(jquant.quantized_linear_matmul, operands, theirs)


@with_kernel
def test_quantized_gemm(a_dtype, b_dtype):
    """QGemm: a bias for each column, for each element, or none."""
    rng = np.random.default_rng(8)
    shapes = (1, 300, 77), (300, 257, 200)
    forms = (True, None), (False, "n"), (True, "mn")
    operands, theirs = [], []
    for (m, k, n), (per_column, c_sizes) in itertools.product(shapes, forms):
        p = Quantized(rng, a_dtype, b_dtype, (), m, k, n, per_column)
        unit, output_scale = p.a_scale * p.b_scale.mean(), np.float32(p.spread / 60)
        c = None
        if c_sizes:
            c = (rng.normal(size=(n,) if c_sizes == "n" else (m, n)) * p.spread / unit).astype(np.int32)
        of_a, of_b = (p.a, p.a_scale, p.a_zero_point), (p.b, p.b_scale, p.b_zero_point)
        operands.append((*of_a, *of_b, c, output_scale, samples.integers(rng, a_dtype)))
        theirs.append(run("QGemm", *operands[-1], domain="com.microsoft"))
    assert_plain_and_packed_equal(jquant.quantized_gemm, operands, theirs)


@one_in(3, ("a_dtype", "b_dtype", "with_bias"), [(*x, y) for x in TYPES_OF_PRODUCTS for y in (False, True)])
def test_matmul_integer_to_float(a_dtype, b_dtype, with_bias):
    """MatMulInteger, Cast, Mul, Add: what onnxruntime fuses to MatMulIntegerToFloat."""
    rng = np.random.default_rng(7)
    operands, theirs = [], []
    for (batch, m, k, n), per_column in itertools.product(FUSED_SHAPES if with_bias else FUSED_SHAPES[-1:], (False, True)):
        if batch and per_column:
            continue  # onnxruntime has no kernel
        p = Quantized(rng, a_dtype, b_dtype, batch, m, k, n, per_column)
        named = {
            name: np.asarray(getattr(p, name)) for name in ("a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point")
        }
        nodes = [
            ("MatMulInteger", ["a", "b", "a_zero_point", "b_zero_point"], ["product"], {}),
            ("Cast", ["product"], ["value"], {"to": onnx.TensorProto.FLOAT}),
            ("Mul", ["a_scale", "b_scale"], ["scale"], {}),
            ("Mul", ["value", "scale"], ["scaled" if with_bias else "output"], {}),
        ]
        if with_bias:
            nodes.append(("Add", ["scaled", "bias"], ["output"], {}))
            named["bias"] = (rng.normal(size=(*(1,) * len(batch), 1, n)) * p.spread).astype(FLOAT32)
        operands.append(tuple(named.values()))
        theirs.append(Graph(*nodes, **named)(**named))
    assert_plain_and_packed_equal(jquant.matmul_integer_to_float, operands, theirs)


# The sizes of input and filter, and ONNX's attributes.
CONVOLUTIONS = [
    ((2, 3, 33, 31), (16, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 16, 41, 40), (33, 16, 1, 1), {}),
    ((3, 8, 30, 29), (12, 8, 5, 3), {"strides": [2, 3], "pads": [0, 2, 3, 1], "dilations": [2, 1]}),
    ((2, 24, 28, 28), (24, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 24}),
    ((2, 24, 29, 28), (48, 1, 5, 5), {"strides": [2, 2], "pads": [2, 1, 1, 2], "group": 24}),
    ((1, 32, 20, 20), (32, 4, 3, 3), {"pads": [1, 1, 1, 1], "group": 8}),
    ((4, 5, 200), (10, 5, 4), {"strides": [2], "pads": [3, 0]}),
    ((1, 3, 12, 11, 13), (8, 3, 3, 2, 3), {"pads": [1, 0, 1, 1, 1, 0]}),
    ((1, 200, 9, 8), (64, 200, 3, 3), {"pads": [1, 1, 1, 1]}),
]


def convolution_options(rank, pads=None, group=1, **windows):
    """ONNX's attributes as ours."""
    padding = "VALID" if pads is None else list(zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True))
    level = "EXTENDED" if rank > 4 else "6_4"  # DirectML has no third spatial dimension
    return {**windows, "padding": padding, "groups": group, "feature_level": level}


@one_in(3, ("a_dtype", "b_dtype"), TYPES_OF_PRODUCTS, first=1)
def test_convolution_integer(a_dtype, b_dtype):
    """Without zero points, with that of the input, with both: of the tensors, onnxruntime has no others."""
    rng = np.random.default_rng(8)
    for index, (sizes, filter_sizes, attributes) in [*enumerate(CONVOLUTIONS)] * 2:
        options = convolution_options(len(sizes), **attributes)
        x, w = samples.integers(rng, a_dtype, *sizes), samples.integers(rng, b_dtype, *filter_sizes)
        zero_points = (samples.integers(rng, a_dtype), samples.integers(rng, b_dtype))[: index % 3]
        theirs = run("ConvInteger", x, w, *zero_points, **attributes)
        np.testing.assert_array_equal(jquant.convolution_integer(x, w, *zero_points, **options), theirs)


def test_convolution_integer_wraps():
    x, w = np.full((1, 140_000, 1, 1), 255, np.uint8), np.full((1, 140_000, 1, 1), 255, np.uint8)
    assert jquant.convolution_integer(x, w) == run("ConvInteger", x, w) == 513_565_408


@one_in(3, ("a_dtype", "b_dtype"), TYPES_OF_PRODUCTS, first=2)
def test_convolution_integer_to_float(a_dtype, b_dtype):
    """ConvInteger, Cast, Mul, Add: with scales and biases for the tensor and for each filter."""
    rng = np.random.default_rng(10)
    for (index, (sizes, filter_sizes, attributes)), per_filter in itertools.product(enumerate(CONVOLUTIONS), (False, True)):
        options = convolution_options(len(sizes), **attributes)
        each = (1, filter_sizes[0] if per_filter else 1, *(1,) * (len(sizes) - 2))
        x, w = samples.integers(rng, a_dtype, *sizes), samples.integers(rng, b_dtype, *filter_sizes)
        x_scale, w_scale = samples.scales(rng, 1)[0], samples.scales(rng, each[1]).reshape(each)
        spread = 74**2 * np.sqrt(np.prod(filter_sizes[1:])) * x_scale * w_scale.mean()  # 74: of uniform integers
        named = {
            **{"x": x, "x_scale": np.asarray(x_scale), "x_zero_point": samples.integers(rng, a_dtype)},
            **{"w": w, "w_scale": w_scale, "w_zero_point": samples.integers(rng, b_dtype)},
        }
        with_bias = (index + per_filter) % 3 > 0
        nodes = [
            ("ConvInteger", ["x", "w", "x_zero_point", "w_zero_point"], ["product"], attributes),
            ("Cast", ["product"], ["value"], {"to": onnx.TensorProto.FLOAT}),
            ("Mul", ["x_scale", "w_scale"], ["scale"], {}),
            ("Mul", ["value", "scale"], ["scaled" if with_bias else "output"], {}),
        ]
        if with_bias:
            nodes.append(("Add", ["scaled", "bias"], ["output"], {}))
            named["bias"] = (rng.normal(size=each) * spread).astype(FLOAT32)
        theirs = Graph(*nodes, **named)(**named)
        ours = jquant.convolution_integer_to_float(*named.values(), **options)
        np.testing.assert_array_equal(ours, theirs, strict=True)


@with_kernel
def test_quantized_linear_convolution(a_dtype, b_dtype):
    """QLinearConv: the output of the input's type, in and out of saturation."""
    rng = np.random.default_rng(9)
    for (index, (sizes, filter_sizes, attributes)), width in itertools.product(enumerate(CONVOLUTIONS), (30, 300)):
        options = convolution_options(len(sizes), **attributes)
        filters, per_filter = filter_sizes[0], (index + (a_dtype == b_dtype)) % 2
        parameters = (filters,) if per_filter else ()
        x, w = samples.integers(rng, a_dtype, *sizes), samples.integers(rng, b_dtype, *filter_sizes)
        x_scale, x_zero_point = samples.scales(rng, 1)[0], samples.integers(rng, a_dtype)
        w_scale = np.resize(samples.scales(rng, filters), parameters)
        w_zero_point = samples.integers(rng, b_dtype, *parameters)
        spread = 74**2 * np.sqrt(np.prod(filter_sizes[1:])) * x_scale * w_scale.mean()  # 74: of uniform integers
        y_scale, y_zero_point = np.float32(spread / width), samples.integers(rng, a_dtype)
        operands = x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point
        bias = [rng.integers(-(10**5), 10**5, filters, np.int32)] if per_filter else []
        theirs = run("QLinearConv", *operands, *bias, **attributes)
        our_bias = [values.reshape(1, -1, *(1,) * (len(sizes) - 2)) for values in bias]
        np.testing.assert_array_equal(jquant.quantized_linear_convolution(*operands, *our_bias, **options), theirs)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8, np.int32])
def test_clip(dtype):
    """The bounds given to onnxruntime are of the input's type already, and ordered: it has max, not min, otherwise."""
    rng = np.random.default_rng(5)
    if np.issubdtype(dtype, np.floating):
        with np.errstate(over="ignore"):
            x = samples.wide_floats(rng, 10_000).astype(dtype)
        bounds = [(-1.5, 2.25), (0, 6), (-np.inf, 3), (1, 1)]
    else:
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min, limits.max, 10_000, dtype, endpoint=True)
        bounds = [(3, 100), (limits.min, 7), (0, 0), (limits.min, limits.max)]
    for low, high in bounds:
        theirs = run("Clip", x, np.asarray(low, dtype), np.asarray(high, dtype))
        np.testing.assert_array_equal(jquant.clip(x, low, high), theirs)
