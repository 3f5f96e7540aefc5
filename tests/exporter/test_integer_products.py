"""Products and convolutions of integers, and products with weights of few bits, exported and run in onnxruntime.

Integers are equal, and so are the bits of floats that are computed from them. What is not finite is left out: onnxruntime's
ReduceMax ignores NaN, and its QuantizeLinear makes any integer of it.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sampling import one_in
from support.saturation import need_exact_products

import jquant
from jquant.cases import CASES, VARIANTS, Case
from jquant.packed.matrix import PackedMatrix
from jquant.reference import products as reference

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: oracle)")

from exporter.running import PRODUCTS, run, sample  # noqa: E402

from jquant.onnx.exporter import export  # noqa: E402

ALL = {name: case for name, case in {**CASES, **VARIANTS}.items() if name.split(",")[0] in PRODUCTS}
ROWS = 6
DOMAINS = ("com.microsoft",), ()
ON_AND_OFF = pytest.mark.parametrize("optimized", [True, False])


def drawn(name: str) -> tuple[Case, tuple]:
    """A case and its arguments, as onnxruntime takes them from Python: in types of NumPy, and finite."""
    case = ALL[name]
    arguments = case.arguments(1, ROWS)
    if name.startswith("gather"):  # ONNX has no other indices
        arguments = arguments[0], np.clip(arguments[1], -20, 19), *arguments[2:]
    function = case.function
    wide = {np.dtype(jnp.bfloat16): np.float32, np.dtype(jnp.int4): np.int8, np.dtype(jnp.uint4): np.uint8}
    types = jax.tree.map(lambda x: x.dtype, arguments)

    def of_wide(*arguments):
        results = function(*jax.tree.map(lambda x, dtype: x.astype(dtype), arguments, types))
        return jax.tree.map(lambda y: y.astype(wide.get(y.dtype, y.dtype)), results)

    def widened(x):
        x = np.asarray(x).astype(wide.get(x.dtype, x.dtype))
        return np.nan_to_num(x, posinf=0) if x.dtype in (np.float32, np.float16) else x

    return dataclasses.replace(case, function=of_wide), jax.tree.map(widened, arguments)


def different(case: Case, arguments: tuple, *, known: bool, domains: tuple = DOMAINS[0], form="exact", optimized) -> int:
    """How many elements differ, with arguments that are all inputs, or with those known that do not belong to rows."""
    need_exact_products(*jax.tree.leaves(arguments))
    inputs = [x for index, x in enumerate(arguments) if not known or index in case.rows]
    parameters = {str(index): x for index, x in enumerate(arguments) if known and index not in case.rows}

    def function(parameters, *inputs):
        others = iter(inputs)
        return case.function(
            *(parameters.get(str(i)) if str(i) in parameters else next(others) for i in range(len(arguments)))
        )

    if not parameters:
        model = export(lambda *inputs: case.function(*inputs), *inputs, domains=domains, form=form)
    else:
        model = export(function, parameters, *inputs, domains=domains, form=form)
    actual = run(model, jax.tree.leaves(inputs), optimized=optimized)
    expected = jax.tree.leaves(jax.jit(case.function)(*arguments))
    for mine, theirs in zip(expected, actual, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    return sum(int(np.count_nonzero(np.asarray(a) != b)) for a, b in zip(expected, actual, strict=True))


WITH_PARAMETERS = [name for name, case in ALL.items() if len(case.rows) < len(case.arguments(0, ROWS))]


@pytest.mark.parametrize("name", sample([name for name in CASES if name in WITH_PARAMETERS], *PRODUCTS, marker="gate"))
def test_known_weights(name):
    """One case of each operator in the suite."""
    assert different(*drawn(name), known=True, optimized=True) == 0


@one_in(9, "name", [name for name in ALL if name in CASES])
def test_arguments_that_are_inputs(name):
    assert different(*drawn(name), known=False, optimized=True) == 0


@one_in(9, "name", [name for name in ALL if name in VARIANTS], gate=3)
def test_arguments_of_variants_that_are_inputs(name):
    assert different(*drawn(name), known=False, optimized=True) == 0


@one_in(9, "name", [name for name in VARIANTS if name in WITH_PARAMETERS], first=4, gate=3)
def test_known_weights_of_variants(name):
    assert different(*drawn(name), known=True, optimized=True) == 0


@pytest.mark.full
@ON_AND_OFF
@pytest.mark.parametrize("domains", DOMAINS)
@pytest.mark.parametrize("form", ["exact", "qdq"])
@pytest.mark.parametrize("name", ALL)
def test_every_form(name, form, domains, optimized):
    """In the form for engines, optimizations may change results."""
    if form == "qdq" and optimized:
        return
    case, arguments = drawn(name)
    for known in (False, True) if name in WITH_PARAMETERS else (False,):
        assert different(case, arguments, known=known, domains=domains, form=form, optimized=optimized) == 0


def integers(rng, dtype, *shape):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


SIGNS = list(itertools.product((np.uint8, np.int8), repeat=2))
POINTS = [((), ()), ((5, 1), (7,)), (None, (7,)), ((5, 1), None), ((), (7,)), ((5, 1), ())]


@pytest.mark.parametrize("types", SIGNS)
@pytest.mark.parametrize("points", POINTS)
def test_signs_and_zero_points(types, points):
    need_exact_products(*types)
    rng = np.random.default_rng(0)
    a, b = integers(rng, types[0], 2, 5, 70), integers(rng, types[1], 70, 7)
    a_zero_point, b_zero_point = (
        None if shape is None else integers(rng, dtype, *shape) for shape, dtype in zip(points, types, strict=True)
    )

    def multiply(parameters, a):
        return jquant.matmul_integer(a, parameters["b"], a_zero_point, b_zero_point, feature_level="EXTENDED")

    model = export(multiply, {"b": b}, a)
    (actual,) = run(model, [a], optimized=True)
    points = (0 if point is None else point for point in (a_zero_point, b_zero_point))
    np.testing.assert_array_equal(actual, reference.matmul_integer(a, b, *points))
    assert [tensor.name for tensor in model.graph.initializer if tensor.dims == [70, 7]] == ["parameters.b"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_packed_weights_are_plain_initializers(dtype):
    rng = np.random.default_rng(1)
    b = integers(rng, dtype, 12, 3)
    packed = jquant.pack_matrix(b, integers(rng, dtype, 3))
    assert isinstance(packed, PackedMatrix)
    model = export(
        lambda params, a: jquant.matmul_integer(a, params["site"], 3), {"site": packed}, integers(rng, np.uint8, 4, 12)
    )
    matrix = next(tensor for tensor in model.graph.initializer if tensor.name == "params.site")
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(matrix), b)
    assert [node.op_type for node in model.graph.node] == ["MatMulInteger"]


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_blocks_are_plain_initializers(bits):
    rng = np.random.default_rng(2)
    q = rng.integers(0, 2**bits, (64, 3)).astype(jnp.uint4 if bits == 4 else np.uint8)
    packed = jquant.pack_matrix(q, scale=np.full((2, 3), 0.5, np.float32))
    x = rng.normal(size=(4, 64)).astype(np.float32)
    model = export(lambda params, x: jquant.matmul_n_bits(x, params["site"]), {"site": packed}, x)
    (node,) = model.graph.node
    assert node.op_type == "MatMulNBits"
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "params.site")
    assert onnx.numpy_helper.to_array(tensor).nbytes == 64 * 3 * bits // 8


def test_a_node_that_says_the_same_is_all_that_is_written():
    rng = np.random.default_rng(3)
    a, b, x, w = (integers(rng, np.int8, *shape) for shape in ((4, 12), (12, 3), (2, 3, 6, 6), (5, 3, 3, 3)))
    scales, filters = np.float32([0.5, 0.25, 0.125]), np.full(5, 0.5, np.float32)
    c = np.arange(3, dtype=np.int32)
    calls = {
        "MatMulInteger": (lambda a: jquant.matmul_integer(a, b, 3, np.arange(3, dtype=np.int8)), a),
        "QLinearMatMul": (lambda a: jquant.quantized_linear_matmul(a, 0.5, 3, b, scales, None, 9.0, np.int8(4)), a),
        "QGemm": (lambda a: jquant.quantized_gemm(a, 0.5, 3, b, scales, None, c, 9.0, np.int8(4)), a),
        "QLinearConv": (lambda x: jquant.quantized_linear_convolution(x, 0.5, 3, w, filters, None, 9.0, np.int8(4)), x),
    }
    for operator, (function, input) in calls.items():
        model = export(function, input)
        assert [node.op_type for node in model.graph.node] == [operator]
        (actual,) = run(model, [input], optimized=True)
        np.testing.assert_array_equal(actual, np.asarray(jax.jit(function)(input)))


def test_convolutions_are_products_of_windows_unless_engines_are_to_fuse_them():
    """onnxruntime multiplies windows that lie side by side far faster than it convolves."""
    need_exact_products(np.uint8, np.int8)
    rng = np.random.default_rng(5)
    x, w = integers(rng, np.uint8, 2, 6, 6, 3), integers(rng, np.int8, 3, 3, 3, 5)

    def function(x):
        return jquant.convolution_integer(
            x, w, 3, padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_level="EXTENDED"
        )

    for form, expected in (
        ("exact", ["Pad", *["Slice"] * 9, "Concat", "MatMulInteger"]),
        ("qdq", ["Transpose", "ConvInteger", "Transpose"]),
    ):
        model = export(function, x, form=form)
        assert [node.op_type for node in model.graph.node] == expected
        (actual,) = run(model, [x], optimized=True)
        np.testing.assert_array_equal(actual, np.asarray(jax.jit(function)(x)))


@pytest.mark.parametrize("mapped", ["rows", "weights", "zero points"])
def test_mapped_products(mapped):
    need_exact_products(np.uint8, np.int8)
    rng = np.random.default_rng(4)
    a, b = integers(rng, np.uint8, 3, 5, 20), integers(rng, np.int8, 3, 20, 4)
    a_point, b_point = integers(rng, np.uint8, 3), integers(rng, np.int8, 3, 4)
    axes = {"rows": (0, None, None, None), "weights": (None, 0, None, None), "zero points": (None, None, 0, 0)}[mapped]
    operands = [x if axis == 0 else x[0] for x, axis in zip((a, b, a_point, b_point), axes, strict=True)]
    function = jax.vmap(jquant.matmul_integer, axes)
    (actual,) = run(export(lambda *operands: function(*operands), *operands), operands, optimized=True)
    np.testing.assert_array_equal(actual, function(*operands))


def test_mapped_convolution():
    need_exact_products(np.uint8, np.int8)
    rng = np.random.default_rng(5)
    x, w = integers(rng, np.int8, 3, 2, 6, 6, 4), integers(rng, np.uint8, 3, 3, 2, 4)
    convolve = functools.partial(
        jquant.convolution_integer,
        filter=w,
        input_zero_point=7,
        filter_zero_point=np.arange(4, dtype=np.uint8),
        groups=2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        padding=((1, 2), (0, 1)),
        feature_level="EXTENDED",
    )
    function = jax.vmap(convolve)
    (actual,) = run(export(lambda x: function(x), x), [x], optimized=True)
    np.testing.assert_array_equal(actual, function(x))


def test_no_terms():
    a, b = np.zeros((3, 0), np.uint8), np.zeros((0, 4), np.int8)
    model = export(lambda a, b: jquant.matmul_integer(a, b, 1, 2), a, b)
    np.testing.assert_array_equal(run(model, [a, b], optimized=True)[0], np.zeros((3, 4), np.int32))


@pytest.mark.parametrize("domains", DOMAINS)
@pytest.mark.parametrize("form", ["exact", "qdq"])
@pytest.mark.parametrize("bits", [4, 8])
def test_float_products_stay_within_their_bound(bits, form, domains):
    """The documented bound, which quantized activations would leave."""
    rng = np.random.default_rng(6)
    k, n, block = 128, 9, 32
    q = rng.integers(0, 2**bits, (k, n)).astype(jnp.uint4 if bits == 4 else np.uint8)
    point = rng.integers(0, 2**bits, (k // block, n)).astype(q.dtype)
    scale = rng.uniform(0.01, 0.1, point.shape).astype(np.float32)
    x = rng.normal(size=(5, k)).astype(np.float32)
    packed = jquant.pack_matrix(q, point, scale=scale)
    model = export(lambda params, x: jquant.matmul_n_bits(x, params["b"]), {"b": packed}, x, domains=domains, form=form)
    differences = q.astype(np.int32) - np.repeat(point.astype(np.int32), block, 0)
    weights = (differences.astype(np.float32) * np.repeat(scale, block, 0)).astype(np.float64)
    bound = (k + 2) * 2.0**-23 * (abs(x).astype(np.float64) @ abs(weights))
    for optimized in (False, *([True] if form == "exact" else [])):
        (actual,) = run(model, [x], optimized=optimized)
        assert np.all(abs(actual - x.astype(np.float64) @ weights) <= bound)


def test_open_sizes():
    need_exact_products(np.uint8, np.int8)
    (size,) = jax.export.symbolic_shape("tokens")
    rng = np.random.default_rng(7)
    b = jquant.pack_matrix(integers(rng, np.int8, 12, 3), integers(rng, np.int8, 3))
    scales = np.float32([[0.5, 0.3, 0.7]])

    def function(params, a, a_scale, a_zero_point):
        return jquant.matmul_integer_to_float(a, a_scale, a_zero_point, params["b"], scales)

    types = [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (((size, 12), np.uint8), ((size, 1), np.float32), ((size, 1), np.uint8))
    ]
    model = export(function, {"b": b}, *types)
    for rows in (1, 4):
        a, points = integers(rng, np.uint8, rows, 12), integers(rng, np.uint8, rows, 1)
        inputs = a, rng.uniform(0.1, 1, (rows, 1)).astype(np.float32), points
        for optimized in (False, True):
            (actual,) = run(model, inputs, optimized=optimized)
            np.testing.assert_array_equal(actual, jax.jit(function)({"b": b}, *inputs))


@pytest.mark.parametrize("implementation", [None, "mosaic_tpu"])
def test_floats_that_the_product_quantizes(implementation):
    """They are quantized by a node, whatever kernel would do it elsewhere."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(5, 40)).astype(np.float32), integers(rng, np.int8, 40, 7)
    scale = np.abs(x).max(1, keepdims=True) / np.float32(127)
    options = {"feature_level": "EXTENDED"}

    def function(x, scale, weights, **others):
        return jquant.matmul_integer_to_float(x, scale, None, weights, 0.25, **options, **others)

    model = export(functools.partial(function, implementation=implementation), x, scale, weights)
    (actual,) = run(model, [x, scale, weights], optimized=True)
    np.testing.assert_array_equal(actual, jax.jit(function)(x, scale, weights))
