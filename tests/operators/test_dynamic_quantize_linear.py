"""`dynamic_quantize_linear`: what conformance tests leave out, such as ranges by row, masks, NaN, meshes, and errors."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import collectives
from support.comparison import assert_equal
from support.sampling import one_in
from support.signatures import DATA_TYPES, level_name, of
from support.signatures import x64 as x64

import jquant
from jquant import DescriptorError, DescriptorTypeError, FeatureLevel
from jquant.cases import samples
from jquant.reference import linear as linear_reference
from jquant.reference import products as products_reference

FLOAT32 = np.float32
both_types = pytest.mark.parametrize("dtype", [np.uint8, np.int8])


@functools.cache
def program(dtype):
    return jax.jit(functools.partial(jquant.dynamic_quantize_linear, output_dtype=dtype, feature_level="EXTENDED"))


@functools.cache
def by_row(axis, symmetric, dtype):
    options = {"axis": axis, "symmetric": symmetric, "output_dtype": dtype, "feature_level": "EXTENDED"}
    return jax.jit(functools.partial(jquant.dynamic_quantize_linear, **options))


def expected_rows(*arguments, **options):
    return jquant.DynamicQuantizeOutput(*linear_reference.dynamic_quantize_linear(*arguments, **options))


def assert_formula(x, dtype):
    output = jquant.DynamicQuantizeOutput(*linear_reference.dynamic_quantize_linear(x, dtype=dtype))
    assert_equal(program(dtype)(x), output, f"{x}")
    return output


@both_types
@one_in(5, "input_dtype", [np.float32, np.float16, jnp.bfloat16])
def test_ranges(input_dtype, dtype):
    """Ranges on one or both sides of zero, of any magnitude; ties of the elements and of the zero point."""
    rng = np.random.default_rng(0)
    for low, high in [(-1, 1), (0, 1), (-1, 0), (0.5, 1), (-1, -0.5), (-1e-3, 1), (-1, 1e-3), (0, 0)]:
        for scale in samples.scales(rng, 8):
            assert_formula((rng.uniform(low, high, 1000) * scale).astype(input_dtype), dtype)
    for half_steps in range(0, 511, 7):  # the scale is 1, and the zero point is an integer or a tie before rounding
        x = np.zeros(1000, FLOAT32)
        x[:300] = samples.near_ties(rng, 300, 1.0, 0, 250) - half_steps / 2
        x[:2] = -half_steps / 2, 255 - half_steps / 2
        assert_formula(x.clip(x[0], x[1]).astype(input_dtype), dtype)


@both_types
@pytest.mark.parametrize(
    "values",
    [
        *([0.0], [-0.0], [0.0, -0.0], [1.0], [-1.0], [1e-30], [3e38, -1e38]),
        *([np.nan, 1], [1, np.nan], [-np.nan, -1], [np.nan, np.inf], [-np.inf, np.nan]),
        *([np.inf, 1], [-np.inf, 1], [np.inf, -np.inf, 0], [3e38, -3e38, 1]),
    ],
    ids=str,
)
def test_special_values(values, dtype):
    assert_formula(FLOAT32(values), dtype)


@both_types
def test_the_documented_ends(dtype):
    limits = np.iinfo(dtype)

    def results(*values):
        output, scale, zero_point = program(dtype)(FLOAT32(values))
        return output.tolist(), scale.item(), zero_point.item()

    assert results(0, -0.0) == ([limits.min] * 2, 1, limits.min)
    assert results() == ([], 1, limits.min)
    assert results(0, 255) == ([limits.min, limits.max], 1, limits.min)
    assert results(-255, 0) == ([limits.min, limits.max], 1, limits.max)
    assert results(np.inf, 1) == ([0, limits.min], np.inf, limits.min)
    assert results(-np.inf, 1) == ([0, 0], np.inf, 0)
    output, scale, zero_point = results(1, np.nan)
    assert (output, np.isnan(scale), zero_point) == ([0, 0], True, 0)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3), (1,) * 8], ids=str)
def test_shapes(shape):
    x = np.arange(np.prod(shape, dtype=int), dtype=FLOAT32).reshape(shape)
    assert [leaf.shape for leaf in assert_formula(x, np.uint8)] == [shape, (), ()]


def test_a_python_scalar_is_float32():
    assert_equal(jquant.dynamic_quantize_linear(-2.0), program(np.dtype(np.uint8))(FLOAT32(-2)))


@pytest.mark.parametrize("where", [0, 37, 63])
@pytest.mark.parametrize("value", [np.nan, -np.nan, -100.0, 100.0])
def test_on_a_mesh(value, where):
    """The bits of one device, wherever the largest value, the smallest value or a NaN is."""
    x = np.linspace(-1, 1, 64, dtype=FLOAT32)
    x[where] = value
    mesh = jax.make_mesh((8,), ("x",))
    split = jax.device_put(x, NamedSharding(mesh, P("x")))
    with jax.set_mesh(mesh):
        actual = program(np.uint8)(split)
    assert_equal(actual, jquant.DynamicQuantizeOutput(*linear_reference.dynamic_quantize_linear(x)))


def test_the_derivative_of_the_scale():
    """1 / 255 for the largest value and -1 / 255 for the smallest; equal values share it."""

    def scale(x):
        return jquant.dynamic_quantize_linear(x).scale

    step = FLOAT32(1) / FLOAT32(255)
    np.testing.assert_array_equal(jax.grad(scale)(FLOAT32([-1, 0, 3, 2])), FLOAT32([-step, 0, step, 0]))
    np.testing.assert_array_equal(jax.grad(scale)(FLOAT32([1, 3, 3])), FLOAT32([0, step / 2, step / 2]))
    np.testing.assert_array_equal(jax.jvp(scale, (FLOAT32([-1, 3]),), (FLOAT32([1, 1]),))[1], FLOAT32(0))
    np.testing.assert_array_equal(jax.grad(scale)(np.zeros(2, FLOAT32)), np.zeros(2, FLOAT32))


def test_its_inverse():
    """`dequantize_linear` takes its outputs."""
    x = FLOAT32([-1, 0, 0.25, 1.55])
    output, scale, zero_point = jquant.dynamic_quantize_linear(x)
    np.testing.assert_allclose(jquant.dequantize_linear(output, scale, zero_point), x, atol=scale / 2)


class TestRows:
    """Ranges by row or other axes, and symmetric ranges."""

    AXES = None, -1, 0, (), (0, -1), "all"

    @both_types
    @one_in(5, ("shape", "symmetric"), itertools.product([(7,), (5, 6), (3, 4, 5), (2, 3, 4, 5)], [False, True]), first=2)
    def test_axes(self, shape, dtype, symmetric, full):
        rng = np.random.default_rng(0)
        dtypes = FLOAT32, np.float16, jnp.bfloat16
        for position, axis in enumerate(self.AXES):
            axis = tuple(range(len(shape))) if axis == "all" else 0 if axis == (0, -1) and len(shape) == 1 else axis
            for input_dtype in dtypes if full else dtypes[position % 3 : position % 3 + 1]:
                x = (rng.normal(size=shape) * rng.choice([1e-3, 1, 100, 0], shape)).astype(input_dtype)
                actual = by_row(axis, symmetric, dtype)(x)
                assert_equal(actual, expected_rows(x, dtype=dtype, axis=axis, symmetric=symmetric), f"{axis}, {x}")
                sizes = () if axis is None else np.max(x.astype(FLOAT32), axis, keepdims=True).shape
                assert actual.scale.shape == actual.zero_point.shape == sizes

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3)], ids=str)
    @pytest.mark.parametrize("symmetric", [False, True])
    def test_empty(self, shape, symmetric):
        x = np.zeros(shape, FLOAT32)
        output, scale, zero_point = by_row(-1, symmetric, np.int8)(x)
        assert output.shape == shape
        sizes = *shape[:-1], 1
        np.testing.assert_array_equal(scale, np.ones(sizes, FLOAT32), strict=True)
        np.testing.assert_array_equal(zero_point, np.full(sizes, 0 if symmetric else -128, np.int8), strict=True)

    ROWS = FLOAT32(
        [
            *([0, -0.0], [1, -2], [1, np.nan], [-np.nan, np.inf], [np.inf, 1], [-np.inf, 1], [-np.inf, np.inf]),
            *([3e38, -3e38], [3e38, 1], [1e-37, -1e-38], [1e-37, 0], [1e-40, -1e-40], [1e-35, -2e-36], [5, 5]),
        ]
    )

    @pytest.mark.parametrize("symmetric", [False, True])
    @both_types
    def test_special_values_stay_in_their_rows(self, dtype, symmetric):
        """The result of a row does not depend on other rows."""
        program = by_row(-1, symmetric, dtype)
        together = program(self.ROWS)
        assert_equal(together, expected_rows(self.ROWS, dtype=dtype, axis=-1, symmetric=symmetric))
        for index in range(len(self.ROWS)):
            row = slice(index, index + 1)
            assert_equal(program(self.ROWS[row]), jax.tree.map(lambda leaf, row=row: leaf[row], together), f"{index}")

    def test_the_documented_ends(self):
        def row_results(*values, symmetric, dtype="UINT8"):
            output, scale, zero_point = by_row(-1, symmetric, np.dtype(dtype.lower()))(FLOAT32([[*values], [1, -2]]))
            assert (output[1].tolist() == [-128 + 255, -43]) or symmetric or dtype == "UINT8"
            return output[0].tolist(), scale[0].item(), zero_point[0].item()

        infinity = np.inf
        assert row_results(0, 0, symmetric=False) == ([0, 0], 1, 0)
        assert row_results(1e-37, 0, symmetric=False) == ([0, 0], 1, 0)
        assert row_results(1e-40, 0, symmetric=True) == ([0, 0], 1, 0)
        assert row_results(1e-37, 0, symmetric=True, dtype="INT8") == ([0, 0], 1, 0)
        assert row_results(127, -254, symmetric=True, dtype="INT8") == ([64, -127], 2, 0)
        assert row_results(127, -254, symmetric=True) == ([192, 1], 2, 128)
        assert row_results(1, infinity, symmetric=True) == ([128, 0], infinity, 128)
        assert row_results(1, -infinity, symmetric=True, dtype="INT8") == ([0, 0], infinity, 0)
        output, scale, zero_point = row_results(1, np.nan, symmetric=True)
        assert (output, np.isnan(scale), zero_point) == ([0, 0], True, 0)

    @pytest.mark.parametrize("symmetric", [False, True])
    def test_where(self, symmetric):
        """Masked elements, also NaN and whole rows of them, do not count for the range, and saturate."""
        x = FLOAT32([[1, -2, 9], [np.nan, 3, -2], [np.nan, np.inf, -9]])
        where = np.array([[True, True, False], [False, True, True], [False] * 3])
        options = {"axis": -1, "symmetric": symmetric, "output_dtype": "INT8", "feature_level": "EXTENDED"}
        actual = jquant.dynamic_quantize_linear(x, where=where, **options)
        assert_equal(actual, expected_rows(x, where, dtype=np.int8, axis=-1, symmetric=symmetric))
        zero_point = 0 if symmetric else -128
        assert (actual.scale[2], actual.zero_point[2], actual.output[0, 2]) == (1, zero_point, 127)
        by_token = jquant.dynamic_quantize_linear(x, where=where[:, 1:2], **options)
        assert_equal(by_token, expected_rows(x, where[:, 1:2], dtype=np.int8, axis=-1, symmetric=symmetric))

    @pytest.mark.gate
    @pytest.mark.parametrize("symmetric", [False, True])
    def test_equals_vmap(self, symmetric):
        """`vmap` of a single range over the rows, and `vmap` of ranges by row over another dimension."""
        rng = np.random.default_rng(0)
        x = (rng.normal(size=(3, 4, 50)) * samples.scales(rng, 12).reshape(3, 4, 1)).astype(FLOAT32)
        single, rows = by_row(None, symmetric, np.int8), by_row(-1, symmetric, np.int8)
        together = rows(x)
        assert_equal(jax.vmap(rows)(x), together)
        assert_equal(jax.vmap(rows, 1, 1)(x), together)
        output, scale, zero_point = jax.vmap(jax.vmap(single))(x)
        assert_equal(jquant.DynamicQuantizeOutput(output, scale[..., None], zero_point[..., None]), together)

    @both_types
    def test_symmetric_is_that_of_scale_and_zero_point(self, dtype):
        x = np.random.default_rng(0).normal(size=(20, 30)).astype(FLOAT32)
        output, scale, zero_point = by_row(1, True, dtype)(x)
        low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
        expected = jquant.scale_and_zero_point(low, high, dtype, symmetric=True, narrow_range=True)
        assert_equal(jquant.ScaleZeroPoint(scale, zero_point), expected)
        np.testing.assert_array_equal(output, jquant.quantize_linear(x, *expected, output_dtype=dtype), strict=True)
        assert np.abs(output.astype(int) - zero_point.astype(int)).max() == 127

    def test_other_operators_take_its_outputs(self):
        rng = np.random.default_rng(0)
        x, w = rng.normal(size=(2, 3, 8)).astype(FLOAT32), rng.integers(-127, 128, (8, 5), np.int8)
        for symmetric in (False, True):
            output, scale, zero_point = by_row(-1, symmetric, np.int8)(x)
            real = jquant.dequantize_linear(output, scale, zero_point)
            assert (np.abs(real - x) <= np.asarray(scale) * 0.5001).all()

            def product(*quantized):
                return jquant.matmul_integer_to_float(*quantized, w, 0.5)

            expected = products_reference.matmul_integer(output, w, zero_point).astype(FLOAT32) * (
                np.asarray(scale) * FLOAT32(0.5)
            )
            np.testing.assert_array_equal(jax.vmap(product)(output, scale, zero_point), expected, strict=True)
            tokens = (leaf.reshape(6, -1) for leaf in (output, scale, zero_point))
            np.testing.assert_array_equal(product(*tokens), expected.reshape(6, 5), strict=True)

    @pytest.mark.parametrize("symmetric", [False, True])
    def test_nothing_of_the_size_of_the_tensor(self, symmetric):
        x = jax.ShapeDtypeStruct((64, 2**14), FLOAT32)
        memory = by_row(-1, symmetric, np.int8).lower(x).compile().memory_analysis()
        assert memory.temp_size_in_bytes <= 64 * 4 * 6  # a few numbers for each row

    @pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit], ids=str)
    @pytest.mark.parametrize("symmetric", [False, True])
    def test_on_a_mesh(self, symmetric, kind):
        """Nothing moves if the mesh splits the rows among devices, and two numbers per row if it splits each row."""
        x = np.linspace(-1, 2, 16 * 64, dtype=FLOAT32).reshape(16, 64)
        x[3, 17], x[5, 40] = np.nan, -100
        mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
        for spec, moved in ((P("x"), set()), (P(None, "x"), {"all-reduce"})):
            with jax.set_mesh(mesh):
                split = jax.device_put(x, NamedSharding(mesh, spec))
                program = by_row(-1, symmetric, np.int8).lower(split).compile()
                assert {operation.kind for operation in collectives(program.as_text())} == moved
                assert_equal(program(split), expected_rows(x, dtype=np.int8, axis=-1, symmetric=symmetric))

    def test_any_number_of_rows(self):
        (rows,) = export.symbolic_shape("rows")
        for symmetric in (False, True):
            shape = jax.ShapeDtypeStruct((rows, 3, 5), FLOAT32)
            program = export.export(by_row(-1, symmetric, np.int8))(shape)
            for count in (1, 4):
                x = np.random.default_rng(0).normal(size=(count, 3, 5)).astype(FLOAT32)
                expected = expected_rows(x, dtype=np.int8, axis=-1, symmetric=symmetric)
                assert_equal(jquant.DynamicQuantizeOutput(*program.call(x)), expected)

    def test_the_derivative_of_the_scale(self):
        def total(x, symmetric):
            return by_row(-1, symmetric, np.int8)(x).scale.sum()

        x = FLOAT32([[1, -3, 2], [0, 0, 0], [4, 1, 4], [-2, 2, 1]])
        range_step, symmetric_step = (FLOAT32(1) / FLOAT32(steps) for steps in (255, 127))
        expected = FLOAT32([[0, -1, 1], [0, 0, 0], [0.5, 0, 0.5], [-1, 1, 0]]) * range_step
        np.testing.assert_array_equal(jax.grad(total)(x, False), expected)
        expected = FLOAT32([[0, -1, 0], [0, 0, 0], [0.5, 0, 0.5], [-0.5, 0.5, 0]]) * symmetric_step
        np.testing.assert_array_equal(jax.grad(total)(x, True), expected)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"axis": 2}, "axis is 2; it must be a dimension of the input, from -2 to 1"),
            ({"axis": (0, -3)}, "axis is -3; it must be a dimension of the input, from -2 to 1"),
            ({"axis": (1, -1)}, "axis is (1, -1), which names a dimension twice"),
            ({"axis": 1.0}, "axis is the float 1.0; it must be a dimension of the input"),
            ({"axis": (None,)}, "axis is None; it must be a dimension of the input"),
            ({"axis": "0"}, "axis is the str '0'; it must be a dimension of the input"),
            ({"symmetric": 1}, "symmetric is the int 1; it must be True or False"),
            ({"axis": -1, "feature_level": "6_4"}, "axis is -1; it must be None below FeatureLevel"),
            ({"axis": (), "feature_level": None}, "axis is (); it must be None below FeatureLevel.EXTE"),
            ({"symmetric": True, "feature_level": "4_0"}, "symmetric is True; it must be False below FeatureLevel"),
        ],
        ids=repr,
    )
    def test_misuse(self, options, text):
        with pytest.raises(DescriptorError) as raised:
            jquant.dynamic_quantize_linear(np.ones((2, 3), FLOAT32), **{"feature_level": "EXTENDED"} | options)
        assert str(raised.value).startswith(f"dynamic_quantize_linear: {text}")

    def test_a_scalar_has_no_axis(self):
        with pytest.raises(DescriptorError, match="axis is 0, but the input is a scalar"):
            jquant.dynamic_quantize_linear(2.0, axis=0, feature_level="EXTENDED")


def told(subject, text, tensor=""):
    return f"dynamic_quantize_linear: {subject} {text} ({tensor}DML_DYNAMIC_QUANTIZE_LINEAR)"


class TestArguments:
    """Data types, ranks and levels, because tests/arguments checks only operators with one output."""

    def outcome(self, level="6_4", shape=(2, 3), dtype="float32", output="uint8"):
        function = functools.partial(jquant.dynamic_quantize_linear, output_dtype=output, feature_level=level)
        try:
            result = jax.eval_shape(function, of(*shape, dtype=dtype))
        except DescriptorError as error:
            return type(error), str(error)
        return [(x.shape, x.dtype.name) for x in result]

    @pytest.mark.usefixtures("x64")
    @pytest.mark.parametrize("level", ["4_0", "6_4", "EXTENDED"])
    def test_data_types(self, level):
        name = level_name(FeatureLevel(level))
        inputs = {"float32", "float16", *(["bfloat16"] if level == "EXTENDED" else [])}
        names = "FLOAT32, FLOAT16, BFLOAT16" if level == "EXTENDED" else "FLOAT32, FLOAT16"
        for dtype in DATA_TYPES:
            expected = [((2, 3), "uint8"), ((), "float32"), ((), "uint8")]
            if dtype not in inputs:
                hint = "; BFLOAT16 is allowed from FeatureLevel.EXTENDED on" if dtype == "bfloat16" else ""
                text = told("input", f"has data type {dtype.upper()}; {name} allows {names}{hint}", "InputTensor of ")
                expected = DescriptorTypeError, text
            assert self.outcome(level, dtype=dtype) == expected
            expected = [((2, 3), dtype), ((), "float32"), ((), dtype)]
            if dtype not in ("int8", "uint8"):
                text = told("output_dtype", f"is {dtype.upper()}; {name} allows INT8, UINT8", "OutputTensor of ")
                expected = DescriptorTypeError, text
            assert self.outcome(level, output=dtype) == expected

    @pytest.mark.parametrize("rank", [0, 1, 8, 9])
    def test_ranks(self, rank):
        expected = [((2,) * rank, "uint8"), ((), "float32"), ((), "uint8")]
        if rank == 9:
            text = f"has rank 9 (shape {(2,) * 9}); DML_FEATURE_LEVEL_6_4 allows 1 to 8"
            text = told("input", text, "InputTensor of ")
            expected = DescriptorError, text
        assert self.outcome(shape=(2,) * rank) == expected

    @pytest.mark.parametrize("level", ["1_0", "3_1"])
    def test_levels(self, level):
        text = f"is DML_FEATURE_LEVEL_{level}; the operator is available from DML_FEATURE_LEVEL_4_0 on"
        text = told("feature_level", text)
        assert self.outcome(level) == (DescriptorError, text)
