"""`dot_general`: against NumPy and the composition of operators, for any dimensions; derivatives, meshes, export, errors."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.comparison import assert_equal, assert_refused
from support.layouts import kinds
from support.sampling import one_in

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.reference import products as reference

FLOAT32, BFLOAT16, FLOAT16 = np.dtype(np.float32), jnp.dtype(jnp.bfloat16), np.dtype(np.float16)
DENSE = (((1,), (0,)), ((), ()))
# The shapes of both operands, and the dimension numbers.
PRODUCTS = {
    "dense": ((5, 32), (32, 7), DENSE),
    "dense of tokens": ((2, 3, 32), (32, 7), (((2,), (0,)), ((), ()))),
    "dense, two contracted, to heads": ((2, 3, 4, 8), (4, 8, 3, 5), (((2, 3), (0, 1)), ((), ()))),
    "dense, contracted in another order": ((2, 3, 4, 8), (8, 4, 5), (((3, 2), (0, 1)), ((), ()))),
    "dense, contracted backwards": ((2, 3, 4, 8), (4, 8, 5), (((3, 2), (1, 0)), ((), ()))),
    "queries by keys": ((2, 6, 3, 8), (2, 5, 3, 8), (((3,), (3,)), ((0, 2), (0, 2)))),
    "probabilities by values": ((2, 3, 6, 5), (2, 5, 3, 8), (((3,), (1,)), ((0, 1), (0, 2)))),
    "batch, several rows": ((4, 2, 3, 8), (4, 8, 5), (((3,), (1,)), ((0,), (0,)))),
    "batch, several columns": ((4, 3, 8), (4, 8, 5, 2), (((2,), (1,)), ((0,), (0,)))),
    "batch behind": ((3, 8, 4), (8, 5, 4), (((1,), (0,)), ((2,), (2,)))),
    "tied embedding": ((5, 32), (7, 32), (((1,), (1,)), ((), ()))),
    "first dimension": ((32, 5), (32, 7), (((0,), (0,)), ((), ()))),
    "vectors": ((32,), (32,), (((0,), (0,)), ((), ()))),
    "vector by matrix": ((32,), (32, 7), (((0,), (0,)), ((), ()))),
    "matrix by vector": ((5, 32), (32,), (((1,), (0,)), ((), ()))),
    "batch of vectors": ((4, 32), (4, 32), (((1,), (1,)), ((0,), (0,)))),
    "outer": ((5,), (7,), (((), ()), ((), ()))),
    "outer of matrices": ((5, 2), (3, 7), (((), ()), ((), ()))),
    "outer in a batch": ((4, 5), (7, 4), (((), ()), ((0,), (1,)))),
    "element by element": ((4, 5), (5, 4), (((), ()), ((0, 1), (1, 0)))),
    "scalars": ((), (), (((), ()), ((), ()))),
    "everything contracted": ((4, 5), (5, 4), (((0, 1), (1, 0)), ((), ()))),
    "rank 9": ((1, 2, 1, 2, 1, 1, 1, 1, 6), (6, 3), (((8,), (0,)), ((), ()))),
    "no terms": ((5, 0), (0, 7), DENSE),
    "no terms in a batch": ((4, 5, 0), (4, 0, 7), (((2,), (1,)), ((0,), (0,)))),
    "no rows": ((0, 32), (32, 7), DENSE),
    "no columns": ((5, 32), (32, 0), DENSE),
    "an empty batch": ((0, 5, 8), (0, 8, 7), (((2,), (1,)), ((0,), (0,)))),
}
GRANULARITIES = list(itertools.product(("PER_CHANNEL", "PER_TENSOR"), repeat=2))
DTYPES = list(itertools.product((FLOAT32, BFLOAT16, FLOAT16), repeat=2))
KINDS = [*itertools.product(DTYPES, GRANULARITIES)]


def drawn(name: str, lhs_dtype=FLOAT32, rhs_dtype=FLOAT32) -> tuple[np.ndarray, np.ndarray]:
    """Random operands of a product, whose magnitudes vary along each of their dimensions."""
    rng = np.random.default_rng([*map(ord, name)])

    def floats(shape, dtype):
        decades = np.zeros(shape)
        for dimension, size in enumerate(shape):
            decades = decades + rng.uniform(-1, 1, [size if other == dimension else 1 for other in range(len(shape))])
        return np.asarray(rng.normal(size=shape) * 10**decades).astype(dtype)

    lhs_shape, rhs_shape, _ = PRODUCTS[name]
    return floats(lhs_shape, lhs_dtype), floats(rhs_shape, rhs_dtype)


def like_lax(name: str, lhs, rhs) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(functools.partial(lax.dot_general, dimension_numbers=PRODUCTS[name][2]), lhs, rhs)


def expected_product(name: str, lhs, rhs, lhs_scales="PER_CHANNEL", rhs_scales="PER_CHANNEL") -> np.ndarray:
    result = like_lax(name, lhs, rhs)
    per_tensor = {"lhs_per_tensor": lhs_scales == "PER_TENSOR", "rhs_per_tensor": rhs_scales == "PER_TENSOR"}
    expected = reference.dot_general(lhs, rhs, PRODUCTS[name][2], result.dtype, **per_tensor)
    assert expected.shape == result.shape
    return expected


def composition(name: str, lhs, rhs, lhs_scales="PER_CHANNEL", rhs_scales="PER_CHANNEL") -> jax.Array:
    """The operators that the docstring names, on operands that are transposed and reshaped to matrices."""
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = PRODUCTS[name][2]
    lhs_free = [dimension for dimension in range(lhs.ndim) if dimension not in (*lhs_contracting, *lhs_batch)]
    rhs_free = [dimension for dimension in range(rhs.ndim) if dimension not in (*rhs_contracting, *rhs_batch)]

    def quantized(x, batch, rows, columns, axis, scales):
        sizes = [math.prod(x.shape[dimension] for dimension in group) for group in (batch, rows, columns)]
        x = jnp.transpose(x, (*batch, *rows, *columns)).reshape(sizes)
        largest = jnp.max(abs(x.astype(jnp.float32)), axis if scales == "PER_CHANNEL" else None, keepdims=True, initial=0)
        scale, _ = jquant.scale_and_zero_point(-largest, largest, "INT8", symmetric=True, narrow_range=True)
        integers = jquant.quantize_linear(x, scale, output_dtype="INT8", feature_level="EXTENDED")
        sizes[axis] = 1
        return integers, jnp.broadcast_to(scale, sizes)

    def multiply(a, a_scale, b, b_scale):
        operands = a, a_scale, None, b, b_scale
        return jquant.matmul_integer_to_float(*operands, output_dtype=result.dtype, feature_level="EXTENDED")

    result = like_lax(name, lhs, rhs)
    a = quantized(lhs, lhs_batch, lhs_free, lhs_contracting, 2, lhs_scales)
    b = quantized(rhs, rhs_batch, rhs_contracting, rhs_free, 1, rhs_scales)
    return jax.vmap(multiply)(*a, *b).reshape(result.shape)


def product(name: str, lhs, rhs, *granularities: str) -> jax.Array:
    scales = dict(zip(("lhs_scales", "rhs_scales"), granularities, strict=False))
    return jquant.dot_general(lhs, rhs, PRODUCTS[name][2], **scales)


@pytest.mark.gate
@one_in(19, ("dtypes", "granularities"), KINDS, others="full")
def test_every_product(dtypes, granularities):
    """Against NumPy, in one program."""
    operands = {name: drawn(name, *dtypes) for name in PRODUCTS}

    @jax.jit
    def all_products(operands):
        return {name: product(name, lhs, rhs, *granularities) for name, (lhs, rhs) in operands.items()}

    results = all_products(operands)
    for name, (lhs, rhs) in operands.items():
        assert_equal(results[name], expected_product(name, lhs, rhs, *granularities), name)


@pytest.mark.full
@pytest.mark.parametrize(("dtypes", "granularities"), KINDS)
def test_the_composition(dtypes, granularities):
    """Against the operators that the docstring names, bit for bit."""
    operands = {name: drawn(name, *dtypes) for name in PRODUCTS}

    def both(operands):
        calls = [(name, lhs, rhs, *granularities) for name, (lhs, rhs) in operands.items()]
        return {call[0]: (product(*call), composition(*call)) for call in calls}

    for name, (actual, expected) in jax.jit(both)(operands).items():
        assert_equal(actual, np.asarray(expected), name)


@pytest.mark.gate
@one_in(5, "name", ["scalars", "dense of tokens", "queries by keys"])
def test_outside_of_a_program(name):
    operands = drawn(name, FLOAT32, BFLOAT16)
    assert_equal(product(name, *operands), expected_product(name, *operands))
    with jax.disable_jit():
        assert_equal(product(name, *operands), expected_product(name, *operands))


def test_the_type_of_the_result():
    """The type that `lax.dot_general` has, or `preferred_element_type`."""
    for lhs_dtype, rhs_dtype in DTYPES:
        lhs, rhs = drawn("dense", lhs_dtype, rhs_dtype)
        assert product("dense", lhs, rhs).dtype == like_lax("dense", lhs, rhs).dtype
    lhs, rhs = drawn("dense", BFLOAT16, FLOAT32)
    for dtype, spelling in ((FLOAT16, "FLOAT16"), (BFLOAT16, jnp.bfloat16), (FLOAT32, np.float32)):
        result = jquant.dot_general(lhs, rhs, DENSE, preferred_element_type=spelling)
        assert_equal(result, reference.dot_general(lhs, rhs, DENSE, dtype))


@pytest.mark.gate
def test_a_sum_too_long_for_int32():
    """The sum wraps modulo 2**32, as that of the operators."""
    lhs, rhs = np.ones((1, 133145), np.float32), np.ones((133145, 1), np.float32)
    scale = np.float32(1) / np.float32(127)
    for terms, total in ((133144, 127 * 127 * 133144), (133145, 127 * 127 * 133145 - 2**32)):
        result = jquant.dot_general(lhs[:, :terms], rhs[:terms], DENSE)
        np.testing.assert_array_equal(result, np.float32(total) * (scale * scale))


class TestSpecialValues:
    LHS, RHS = (np.random.default_rng(0).normal(size=size).astype(np.float32) for size in ((128, 512), (512, 96)))

    @pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
    def test_what_is_no_number_gives_none(self, special, dtype):
        """Wherever it is, although XLA:CPU's own maximum skips a NaN."""
        lhs, rhs = self.LHS.copy(), self.RHS.copy()
        rows, columns = np.arange(0, 128, 5), np.arange(0, 96, 7)
        lhs[rows, 19 * rows % 512] = special
        rhs[17 * columns % 512, columns] = special
        lhs, rhs = lhs.astype(dtype), rhs.astype(dtype)
        expected = np.isin(np.arange(128), rows)[:, None] | np.isin(np.arange(96), columns)
        np.testing.assert_array_equal(np.isnan(jquant.dot_general(lhs, rhs, DENSE).astype(np.float32)), expected)
        for scales in ({"lhs_scales": "PER_TENSOR"}, {"rhs_scales": "PER_TENSOR"}):
            assert np.all(np.isnan(jquant.dot_general(lhs, rhs, DENSE, **scales).astype(np.float32)))

    def test_zeros(self):
        lhs = self.LHS.copy()
        lhs[3] = 0
        result = jquant.dot_general(lhs, self.RHS, DENSE)
        np.testing.assert_array_equal(result[3], 0)
        assert np.all(np.isnan(jquant.dot_general(lhs * np.float32(0), np.full_like(self.RHS, np.inf), DENSE)))


class TestDerivatives:
    @pytest.mark.gate
    @one_in(15, "dtypes", DTYPES, others="full")
    def test_of_the_product_of_what_the_integers_stand_for(self, dtypes):
        """The gradients are those of `lax.dot_general` of the dequantized operands, bit for bit."""
        operands = {name: drawn(name, *dtypes) for name in PRODUCTS}

        def both(operands):
            gradients = {}
            for name, (lhs, rhs) in operands.items():
                result, pull = jax.vjp(functools.partial(product, name), lhs, rhs)
                float_product = functools.partial(lax.dot_general, dimension_numbers=PRODUCTS[name][2])
                _, float_pull = jax.vjp(float_product, *dequantized(name, lhs, rhs))
                cotangent = jnp.cos(jnp.arange(result.size)).reshape(result.shape).astype(result.dtype)
                gradients[name] = pull(cotangent), float_pull(cotangent)
            return gradients

        for name, (actual, expected) in jax.jit(both)(operands).items():
            assert_equal(actual, jax.tree.map(np.asarray, expected), name)

    @pytest.mark.gate
    def test_forward_and_second(self):
        lhs, rhs = drawn("dense")
        dots = np.cos(lhs), np.sin(rhs)
        rounded = dequantized("dense", lhs, rhs)
        multiply = functools.partial(product, "dense")
        float_multiply = functools.partial(lax.dot_general, dimension_numbers=DENSE)
        np.testing.assert_array_equal(jax.jvp(multiply, (lhs, rhs), dots)[1], jax.jvp(float_multiply, rounded, dots)[1])

        def loss(function):
            return lambda lhs, rhs: jnp.sum(function(lhs, rhs))

        def hessian(function):
            return jax.jit(jax.hessian(loss(function), argnums=(0, 1)))

        actual, expected = hessian(multiply)(lhs, rhs), hessian(float_multiply)(*rounded)
        jax.tree.map(np.testing.assert_array_equal, actual, expected)
        assert np.any(expected[0][1])

    def test_of_one_operand_alone(self):
        """No product with the other operand's zero tangent is computed."""
        lhs = np.random.default_rng(0).integers(-127, 128, (5, 32)).astype(np.float32)
        lhs[:, 0] = 127  # the scales are 1, and the sums exact in any order: XLA's depends on the processor
        _, rhs = drawn("dense")
        gradient = jax.grad(lambda rhs: product("dense", lhs, rhs).sum())
        assert str(jax.make_jaxpr(gradient)(rhs)).count("dot_general[") == 1
        np.testing.assert_array_equal(gradient(rhs), np.broadcast_to(lhs.sum(0)[:, None], rhs.shape))

    def test_precision(self):
        """`precision` is that of the products of floats, which only the derivatives have."""
        lhs, rhs = drawn("dense")
        for precision in ("highest", lax.Precision.HIGHEST, ["highest", "highest"]):
            multiply = functools.partial(jquant.dot_general, dimension_numbers=DENSE, precision=precision)
            assert "HIGHEST" not in jax.jit(multiply).lower(lhs, rhs).as_text()
            backward = jax.jit(jax.grad(lambda *operands, f=multiply: f(*operands).sum())).lower(lhs, rhs)
            assert "HIGHEST" in backward.as_text()

    @pytest.mark.gate
    def test_through_scan_and_remat(self):
        """The gradients of a scan over layers are those of the unrolled loop."""
        rng = np.random.default_rng(0)
        x, layers = rng.normal(size=(4, 8)).astype(np.float32), rng.normal(size=(3, 8, 8)).astype(np.float32)

        def layer(x, weights):
            return jnp.tanh(jquant.dot_general(x, weights, DENSE))

        def scanned(layers):
            return lax.scan(jax.checkpoint(lambda x, weights: (layer(x, weights), None)), x, layers)[0].sum()

        def unrolled(layers):
            return functools.reduce(layer, layers, x).sum()

        actual, expected = (jax.jit(jax.value_and_grad(loss))(layers) for loss in (scanned, unrolled))
        np.testing.assert_array_equal(actual[0], expected[0])
        np.testing.assert_allclose(actual[1], expected[1], rtol=1e-6, atol=2e-6)


def dequantized(name: str, lhs, rhs) -> tuple[jax.Array, jax.Array]:
    """The operands, quantized and dequantized in their dtypes."""
    (lhs_contracting, rhs_contracting), _ = PRODUCTS[name][2]

    def rounded(x, contracting):
        largest = jnp.max(abs(jnp.asarray(x, jnp.float32)), tuple(contracting), keepdims=True, initial=0)
        scale, _ = jquant.scale_and_zero_point(-largest, largest, "INT8", symmetric=True, narrow_range=True)
        options = {"feature_level": "EXTENDED"}
        flat = jnp.ravel(x), jnp.broadcast_to(scale, x.shape).ravel()
        integers = jquant.quantize_linear(*flat, output_dtype="INT8", **options)
        return jquant.dequantize_linear(integers, flat[1], output_dtype=x.dtype, **options).reshape(x.shape)

    return rounded(lhs, lhs_contracting), rounded(rhs, rhs_contracting)


@one_in(9, ("axes", "granularity"), itertools.product([(0, 0), (1, None), (None, 2)], ["PER_CHANNEL", "PER_TENSOR"]))
def test_vmap(granularity, axes):
    """Each mapped operand has scales of its own, also with one scale per tensor."""
    rng = np.random.default_rng(0)
    shapes = (4, 6, 5), (6, 3, 7)
    lhs, rhs = (
        rng.normal(size=shape if axis is None else np.insert(shape, axis, 2)).astype(np.float32)
        for shape, axis in zip(shapes, axes, strict=True)
    )
    numbers = (((1,), (0,)), ((), ()))
    scales = {"lhs_scales": granularity, "rhs_scales": granularity}
    multiply = functools.partial(jquant.dot_general, dimension_numbers=numbers, **scales)
    result = jax.jit(jax.vmap(multiply, in_axes=axes))(lhs, rhs)
    for index in range(2):
        operands = (x if axis is None else x.take(index, axis) for x, axis in zip((lhs, rhs), axes, strict=True))
        per_tensor = granularity == "PER_TENSOR"
        expected = reference.dot_general(*operands, numbers, lhs_per_tensor=per_tensor, rhs_per_tensor=per_tensor)
        assert_equal(result[index], expected)


# What a program costs.


LAYERS = "dense", "dense of tokens", "dense, two contracted, to heads", "dense, contracted backwards", "tied embedding"


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_is_transposed(name):
    """Operands in the layouts of layers are multiplied as they are."""
    text = jax.jit(functools.partial(product, name)).lower(*drawn(name)).as_text()
    assert "stablehlo.transpose" not in text


def test_nothing_of_the_size_of_the_floats():
    """The only temporaries are the integers of both operands."""
    m, k, n = 128, 512, 2048
    shapes = (jax.ShapeDtypeStruct(sizes, np.float32) for sizes in ((m, k), (k, n)))
    program = jax.jit(functools.partial(jquant.dot_general, dimension_numbers=DENSE)).lower(*shapes).compile()
    assert program.memory_analysis().temp_size_in_bytes <= m * k + k * n + 2**15


# Meshes and export.

LAYOUTS = {  # the specs of both operands and of the result, and the types that move: the operands' maxima, and the product
    "rows": (P(("x", "y")), P(), P(("x", "y")), []),
    "columns": (P(), P(None, ("x", "y")), P(None, ("x", "y")), []),
    "rows and columns": (P("x"), P(None, "y"), P("x", "y"), []),
    "K": (P(None, ("x", "y")), P(("x", "y")), P(), ["s32", "s32"]),
    "rows and K": (P("x", "y"), P("y"), P("x"), ["s32", "s32"]),
}


@kinds
@pytest.mark.parametrize("layout", LAYOUTS)
def test_mesh(layout, kind):
    """The bits of one device, also of NaN."""
    lhs_spec, rhs_spec, output_spec, moved = LAYOUTS[layout]
    rng, mesh = np.random.default_rng(0), jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind))
    lhs, rhs = (rng.normal(size=size).astype(np.float32) for size in ((16, 64), (64, 32)))
    lhs[3, 50] = np.nan
    multiply = functools.partial(jquant.dot_general, dimension_numbers=DENSE)
    with jax.set_mesh(mesh):
        operands = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((lhs, lhs_spec), (rhs, rhs_spec))]
        program = jax.jit(multiply).lower(*operands).compile()
        output = program(*operands)
        assert output.sharding.is_equivalent_to(NamedSharding(mesh, output_spec), output.ndim)
    assert_equal(output, reference.dot_general(lhs, rhs, DENSE))
    operations = collectives(program.as_text())
    assert {operation.kind for operation in operations} <= {"all-reduce"}
    assert sorted(dtype for operation in operations for dtype in operation.types) == moved


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["Auto", "Explicit"])
@pytest.mark.parametrize(
    ("lhs", "rhs", "numbers", "specs"),
    [
        ((4, 8, 64), (64, 32), (((2,), (0,)), ((), ())), (P("x", "y"), P(), P("x", "y"))),
        (
            (4, 6, 8, 16),
            (4, 5, 8, 16),
            (((3,), (3,)), ((0, 2), (0, 2))),
            (P("x", None, "y"), P("x", None, "y"), P("x", "y")),
        ),
        ((4, 64), (64, 8, 5), (((1,), (0,)), ((), ())), (P("x"), P(None, "y"), P("x", "y"))),
    ],
    ids=["tokens", "attention", "heads"],
)
def test_mesh_of_several_split_dimensions(lhs, rhs, numbers, specs, kind):
    """Split dimensions are not merged, so that nothing moves."""
    rng, mesh = np.random.default_rng(0), jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind))
    lhs, rhs = (rng.normal(size=size).astype(np.float32) for size in (lhs, rhs))
    with jax.set_mesh(mesh):
        operands = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((lhs, specs[0]), (rhs, specs[1]))]
        program = jax.jit(functools.partial(jquant.dot_general, dimension_numbers=numbers)).lower(*operands).compile()
        output = program(*operands)
    assert output.sharding.is_equivalent_to(NamedSharding(mesh, specs[2]), output.ndim)
    assert_equal(output, reference.dot_general(lhs, rhs, numbers))
    assert collectives(program.as_text()) == []


def test_out_sharding():
    """With explicit axes, the sharding is that of `lax.dot_general`."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    lhs, rhs = (np.random.default_rng(0).normal(size=size).astype(np.float32) for size in ((16, 64), (64, 32)))
    expected = reference.dot_general(lhs, rhs, DENSE)
    with jax.set_mesh(mesh):
        operands = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((lhs, P(None, "y")), (rhs, P("y")))]
        for sharding in (P("x", "y"), NamedSharding(mesh, P("x"))):
            options = {"dimension_numbers": DENSE, "out_sharding": sharding}
            output = jax.jit(functools.partial(jquant.dot_general, **options))(*operands)
            float_output = jax.jit(functools.partial(lax.dot_general, **options))(*operands)
            assert output.sharding == float_output.sharding
            assert_equal(output, expected)


@pytest.mark.gate
def test_derivative_of_a_split_sum():
    """Also with explicit axes, where `lax.dot_general` needs the sharding of the result."""
    lhs, rhs = (np.random.default_rng(0).normal(size=size).astype(np.float32) for size in ((16, 64), (64, 32)))
    gradient = jax.jit(jax.grad(lambda *operands: jquant.dot_general(*operands, DENSE).sum(), argnums=(0, 1)))
    expected = gradient(lhs, rhs)
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind))
        with jax.set_mesh(mesh):
            operands = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((lhs, P("x", "y")), (rhs, P("y")))]
            actual = gradient(*operands)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), actual, expected)


@pytest.mark.gate
def test_export_of_any_batch():
    """Products of tokens with weights, and of attention, whose batch and rows have symbolic sizes."""
    b, t = export.symbolic_shape("b, t")

    def function(x, weights):
        heads = jquant.dot_general(x, weights, (((2,), (0,)), ((), ())))
        scores = jquant.dot_general(heads, heads, (((3,), (3,)), ((0, 2), (0, 2))))
        return scores, jquant.dot_general(scores, heads, (((3,), (1,)), ((0, 1), (0, 2))))

    rng = np.random.default_rng(0)
    weights = rng.normal(size=(16, 2, 8)).astype(np.float32)
    shape = jax.ShapeDtypeStruct((b, t, 16), np.float32)
    exported = export.export(jax.jit(function), platforms=("cpu", "cuda", "tpu"))(shape, weights)
    program = export.deserialize(exported.serialize())
    for sizes in ((1, 1), (3, 5), (2, 64)):
        x = rng.normal(size=(*sizes, 16)).astype(np.float32)
        assert_equal(program.call(x, weights), jax.tree.map(np.asarray, function(x, weights)))


# Functions that take another dot_general.


def test_einsum():
    """`jnp.einsum` passes a preferred type, and the operands in either order."""
    queries, keys = drawn("queries by keys")
    einsum = functools.partial(jnp.einsum, _dot_general=jquant.dot_general)
    result = einsum("bqhd,bkhd->bhqk", queries, keys)
    np.testing.assert_array_equal(result, expected_product("queries by keys", queries, keys))
    swapped = einsum("bqhd,bkhd->bhkq", queries, keys)
    np.testing.assert_array_equal(swapped, np.swapaxes(result, 2, 3))


X, W = np.ones((2, 3, 4), np.float32), np.ones((4, 5), np.float32)
MATMUL = (((2,), (0,)), ((), ()))


@pytest.mark.parametrize(
    ("operands", "options", "message"),
    [
        ((X, W, (((2,), (1,)), ((), ()))), {}, "dimension_numbers is (((2,), (1,)), ((), ())); the contracting dimensions"),
        ((X, W, (((3,), (0,)), ((), ()))), {}, "it names a dimension of lhs outside 0 to 2: lhs has shape (2, 3, 4)"),
        ((X, W, (((-1,), (0,)), ((), ()))), {}, "it names a dimension of lhs outside 0 to 2: lhs has shape (2, 3, 4)"),
        ((X, W, (((2, 1), (0,)), ((), ()))), {}, "lhs has 2 contracting dimensions, but rhs has 1"),
        ((X, W, (((2,), (0,)), ((0,), ()))), {}, "lhs has 1 batch dimensions, but rhs has 0"),
        (
            (X, W, (((2,), (0,)), ((0,), (1,)))),
            {},
            "the batch dimensions of lhs have sizes (2,), but those of rhs have (5,)",
        ),
        ((X, W, (((2, 2), (0, 0)), ((), ()))), {}, "it names a dimension of lhs twice"),
        ((X, X, (((2,), (2,)), ((0,), (2,)))), {}, "it names a dimension of rhs twice"),
        ((X, W, MATMUL), {"lhs_scales": "PER_ROW"}, "unknown lhs_scales 'PER_ROW'; choose one of PER_CHANNEL, PER_TENSOR"),
        ((X, W, MATMUL), {"precision": "exact"}, "precision is 'exact'; it must be one that jax.lax.dot_general accepts"),
        ((X, W, MATMUL), {"out_sharding": P("x")}, ", which JAX rejects: "),
    ],
)
def test_errors(operands, options, message):
    assert_refused(lambda: jquant.dot_general(*operands, **options), message, DescriptorError)


@pytest.mark.parametrize(
    ("operands", "options", "message"),
    [
        ((X.astype(np.int8), W, MATMUL), {}, "lhs has data type INT8; it must be one of FLOAT32, FLOAT16, BFLOAT16"),
        ((X, W.astype(np.int32), MATMUL), {}, "rhs has data type INT32; it must be one of FLOAT32, FLOAT16, BFLOAT16"),
        ((X, W, ((2,), (0,))), {}, "dimension_numbers is ((2,), (0,)); it must be ((lhs_contracting, rhs_contracting), "),
        ((X, W, (((2.0,), (0,)), ((), ()))), {}, "it must be ((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))"),
        ((X, W, MATMUL), {"preferred_element_type": jnp.int32}, "preferred_element_type is INT32; it must be one of"),
        ((X, W, MATMUL), {"rhs_scales": None}, "unknown rhs_scales None; choose one of PER_CHANNEL, PER_TENSOR"),
        ((X, W, MATMUL), {"precision": 1}, "precision is 1; it must be one that jax.lax.dot_general accepts"),
        ((X, W, MATMUL), {"out_sharding": "x"}, "out_sharding is 'x'; it must be a NamedSharding, a PartitionSpec or None"),
    ],
)
def test_errors_of_type(operands, options, message):
    assert_refused(lambda: jquant.dot_general(*operands, **options), message, DescriptorTypeError)
