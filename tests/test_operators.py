"""What no engine covers, and the policies where the documents are silent."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples
from cases import assert_equal
from programs import together
from samples import integers as matrix

import jquant
from jquant import reference

FLOAT32 = np.float32
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32]


class TestDequantizeLinear:
    @pytest.mark.parametrize("scale_dtype", [np.float32, np.float16])
    @pytest.mark.parametrize("dtype", [np.int32, np.uint32])
    def test_difference_neither_wraps_nor_rounds(self, dtype, scale_dtype):
        rng = np.random.default_rng(0)
        x, zero_point = matrix(rng, dtype, 100_000), matrix(rng, dtype, 100_000)
        limits = np.iinfo(dtype)
        x[:3], zero_point[:3] = [limits.max, limits.min, limits.max], [limits.min, limits.max, limits.max - 1]
        scale = samples.scales(rng, 100_000).astype(scale_dtype)
        with np.errstate(over="ignore"):
            assert_equal(jquant.dequantize_linear(x, scale, zero_point), reference.dequantize_linear(x, scale, zero_point))

    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_every_way_to_broadcast(self, dtype):
        rng = np.random.default_rng(1)
        x = matrix(rng, dtype, 2, 3, 4)
        shapes = [(), (1, 1, 1), (1, 3, 1), (2, 1, 4), (2, 3, 4)]
        calls = []
        for scale_shape, zero_point_shape in itertools.product(shapes, repeat=2):
            scale = rng.uniform(0.1, 1, scale_shape).astype(FLOAT32)
            calls.append((x, scale, matrix(rng, dtype, *zero_point_shape)))
        results = together([(jquant.dequantize_linear, operands) for operands in calls])
        for result, operands in zip(results, calls, strict=True):
            assert_equal(result, reference.dequantize_linear(*operands))

    def test_special_scales(self):
        x = np.array([-2, 0, 3], np.int8)
        for scale in (0.0, np.inf, -np.inf, np.nan, -1.5, 3e38):
            actual = np.asarray(jquant.dequantize_linear(x, scale))
            expected = reference.dequantize_linear(x, FLOAT32(scale))
            assert_equal(actual, expected)
            np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))

    def test_bfloat16(self):
        x = np.arange(-128, 128, dtype=np.int8)
        scale = jnp.bfloat16(0.0123)
        expected = reference.dequantize_linear(x, np.asarray(scale), 3)
        assert_equal(jquant.dequantize_linear(x, scale, 3, feature_level="EXTENDED"), expected)


class TestQuantizeLinear:
    @pytest.mark.parametrize("dtype", [np.int8, np.uint8])
    def test_int32_input(self, dtype):
        rng = np.random.default_rng(0)
        x = np.concatenate([matrix(rng, np.int32, 1000), rng.integers(-9999, 9999, 100_000, np.int32)])
        for scale in samples.scales(rng, 20):
            assert_equal(jquant.quantize_linear(x, scale, dtype(7)), reference.quantize_linear(x, scale, 7, dtype))

    @pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
    def test_special_values(self, dtype):
        x = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 65504], dtype)
        for scale in (1.0, -1.0, 0.0, np.inf, np.nan):
            actual = jquant.quantize_linear(x, scale, 3, output_dtype="INT8", feature_level="EXTENDED")
            assert_equal(actual, reference.quantize_linear(x, np.array(scale, dtype), 3, np.int8))

    def test_output_data_type(self):
        x = jnp.ones(2, FLOAT32)
        assert jquant.quantize_linear(x, 1.0).dtype == jnp.uint8
        assert jquant.quantize_linear(x, 1.0, 3).dtype == jnp.uint8
        assert jquant.quantize_linear(x, 1.0, np.int8(3)).dtype == jnp.int8
        assert jquant.quantize_linear(x, 1.0, 3, output_dtype=jnp.int8).dtype == jnp.int8


class TestMatmulInteger:
    @pytest.mark.parametrize("b_dtype", [np.int8, np.uint8])
    @pytest.mark.parametrize("a_dtype", [np.int8, np.uint8])
    def test_every_zero_point(self, a_dtype, b_dtype):
        """None, per tensor, per row and per column in every combination, and each of their shapes."""
        rng = np.random.default_rng(0)
        m, k, n = 5, 33, 7
        shapes = [*itertools.product([None, (), (m,)], [None, (), (n,)])]
        shapes += [((m, 1), (1, n)), ((1, m, 1), (1, 1, n)), ((1, 1, m, 1), (1, 1, 1, n)), ((1,), (1,)), ((1, 1), (1, 1))]
        calls, expected = [], []
        for batch in ((), (2, 3)):
            a, b = matrix(rng, a_dtype, *batch, m, k), matrix(rng, b_dtype, *batch, k, n)
            for row, column in shapes:
                a_zero_point = None if row is None else matrix(rng, a_dtype, *row)
                b_zero_point = None if column is None else matrix(rng, b_dtype, *column)
                calls.append((jquant.matmul_integer, (a, b, a_zero_point, b_zero_point)))
                of_rows = 0 if a_zero_point is None else a_zero_point.reshape(-1, 1)
                of_columns = 0 if b_zero_point is None else b_zero_point.reshape(1, -1)
                expected.append(reference.matmul_integer(a, b, of_rows, of_columns))
        for result, product in zip(together(calls), expected, strict=True):
            assert_equal(result, product)

    def test_batch_sizes_of_1_broadcast(self):
        rng = np.random.default_rng(1)
        a, b = matrix(rng, np.uint8, 1, 3, 4, 5), matrix(rng, np.int8, 2, 1, 5, 6)
        assert_equal(jquant.matmul_integer(a, b, 9, -4), reference.matmul_integer(a, b, 9, -4))

    @pytest.mark.parametrize(("m", "k", "n"), [(2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0)])
    def test_empty(self, m, k, n):
        a, b = np.ones((m, k), np.uint8), np.ones((k, n), np.int8)
        expected = reference.matmul_integer(a, b, 3, 3)
        assert_equal(jquant.matmul_integer(a, b, 3, 3), expected)
        assert_equal(jquant.matmul_integer(a, b, np.full(m, 3, np.uint8), np.full(n, 3, np.int8)), expected)

    @pytest.mark.parametrize(("a_value", "b_value"), [(255, 255), (255, -128), (0, -128)])
    def test_wraps_modulo_2_to_the_32(self, a_value, b_value):
        k = 140_000
        b_dtype = np.int8 if b_value < 0 else np.uint8
        a, b = np.full((1, k), a_value, np.uint8), np.full((k, 2), b_value, b_dtype)
        for a_zero_point, b_zero_point in ((0, 0), (255, 0), (7, 127)):
            expected = reference.matmul_integer(a, b, a_zero_point, b_zero_point)
            assert_equal(jquant.matmul_integer(a, b, a_zero_point, b_zero_point), expected)

    def test_implementations(self):
        a = jnp.ones((2, 2), jnp.int8)
        assert_equal(jquant.matmul_integer(a, a, implementation="xla"), np.full((2, 2), 2, np.int32))
        with pytest.raises(ValueError, match="unknown implementation 'magic'; choose one of xla, mosaic_tpu, mosaic_gpu"):
            jquant.matmul_integer(a, a, implementation="magic")


class TestClip:
    @pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
    def test_bounds_are_cast_to_integers(self, dtype):
        rng = np.random.default_rng(0)
        x = np.concatenate([matrix(rng, dtype, 1000), np.arange(100).astype(dtype)])
        bounds = [-np.inf, -3e9, -1.5, -0.9, 0, 0.9, 7.99, 99.5, 255.9, 70000, 2147483645, 4294967295, np.inf, np.nan]
        for low, high in itertools.product(bounds, repeat=2):
            assert_equal(jquant.clip(x, low, high), reference.clip(x, low, high))

    def test_documented_casts(self):
        assert_equal(jquant.clip(np.uint8([0, 9]), -1.5, 255.9), np.uint8([0, 9]))
        assert_equal(jquant.clip(np.int32([-5, 5]), -0.9, 2147483645), np.int32([0, 5]))
        assert_equal(jquant.clip(np.int8([-5, 5]), np.nan), np.int8([0, 5]))
        assert_equal(jquant.clip(np.float16([60000, np.inf]), max=70000), np.float16([60000, np.inf]))
        assert_equal(jquant.clip(np.float16([np.inf]), max=65519.99), np.float16([65504]))

    @pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint32])
    def test_min_greater_than_max_gives_min(self, dtype):
        x = np.array([0, 3, 100], dtype)
        assert_equal(jquant.clip(x, 7, 2), np.full(3, 7, dtype))

    def test_nan(self):
        x = FLOAT32([np.nan, 1, np.inf])
        assert_equal(jquant.clip(x, 0, 6), FLOAT32([np.nan, 1, 6]))
        assert_equal(jquant.clip(x, np.nan, 6), np.full(3, np.nan, FLOAT32))
        assert_equal(jquant.clip(x, 0, np.nan), np.full(3, np.nan, FLOAT32))

    @pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
    def test_scale_bias(self, dtype):
        rng = np.random.default_rng(0)
        with np.errstate(over="ignore"):
            x = samples.wide_floats(rng, 100_000).astype(dtype)
        expected = reference.clip(x, -3, 65519.99, (1.1, -0.3))
        actual = jquant.clip(x, -3, 65519.99, scale_bias=(1.1, -0.3), feature_level="EXTENDED")
        assert_equal(actual, expected)

    def test_donated_input_is_overwritten(self):
        x = jnp.linspace(-1, 9, 1000, dtype=FLOAT32)
        address, expected = x.unsafe_buffer_pointer(), reference.clip(np.asarray(x), 0, 6)
        y = jax.jit(jquant.clip, donate_argnums=0)(x, 0, 6)
        assert y.unsafe_buffer_pointer() == address
        assert_equal(y, expected)


class TestQuantize:
    @pytest.mark.parametrize("dtype", INTEGERS[:5])
    @pytest.mark.parametrize("mode", ["MIN_COMBINED", "MIN_FIRST", "SCALED"])
    def test_equals_the_model(self, mode, dtype):
        """So that a run without TensorFlow judges this operator, too."""
        rng = np.random.default_rng(0)
        step = 11.7 / (2.0 ** np.iinfo(dtype).bits - 1)
        x = np.concatenate([samples.near_ties(rng, 50_000, step, -300, 300), samples.wide_floats(rng, 50_000)])
        for low, high in [(-5.7, 6.0), (2, 4), (-4, -2), (0, 1 / 255), (-1e30, 2e30), (1e-30, 1e-25)]:
            for least in (0.01, 0.0, 1.5):
                expected = reference.quantize(x, low, high, dtype, mode, ensure_minimum_range=least)
                actual = jquant.quantize(x, low, high, dtype, mode=mode, ensure_minimum_range=least)
                for ours, theirs in zip(actual, expected, strict=True):
                    assert_equal(ours, theirs)

    def test_the_documents_examples(self):
        output, *_ = jquant.quantize(FLOAT32([0, 1, 6]), 0, 6, "quint8")
        assert_equal(output, np.uint8([0, 43, 255]))  # multiplied by 255/6
        output, *_ = jquant.quantize(FLOAT32([0, 1, 6]), 0, 6, "qint8")
        assert_equal(output, np.int8([-128, -86, 127]))  # and 128 less: -85.5 away from zero
        _, output_min, output_max = jquant.quantize(FLOAT32([0]), -10, 9, "qint8", mode="SCALED", ensure_minimum_range=0)
        assert (output_min, output_max) == (-10, 9.921875)

    def test_surprises_of_the_kernel(self):
        assert jquant.quantize(FLOAT32(0), -6, 6, "qint8").output == -1
        assert jquant.quantize(FLOAT32(0.49999997), 0, 255, "quint8").output == 1
        narrow = jquant.quantize(FLOAT32(0), 0, 6, "quint8", mode="SCALED", narrow_range=True)
        assert narrow.output == 1
        negative = jquant.quantize(FLOAT32([-3, -1]), -4, -2, "quint8", mode="SCALED", ensure_minimum_range=0)
        assert_equal(negative.output, np.uint8([0, 0]))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 4)])
def test_empty_arrays(shape):
    x = np.zeros(shape, np.int8)
    rank_1s = (1,) * len(shape)
    scale = np.full(rank_1s, 0.5, FLOAT32)
    assert jquant.dequantize_linear(x, scale, np.zeros(rank_1s, np.int8)).shape == shape
    assert jquant.quantize_linear(x.astype(FLOAT32), scale).shape == shape
    assert jquant.quantized_linear_add(x, 1.0, None, x, 1.0, None, 1.0).shape == shape
    assert jquant.clip(x, 0, 1).shape == shape
    for axis in range(len(shape)):
        bounds = np.zeros(shape[axis], FLOAT32)
        output = jquant.quantize(x.astype(FLOAT32), bounds, bounds + 1, "qint8", axis=axis)
        assert output.output.shape == shape
        assert output.output_min.shape == output.output_max.shape == (shape[axis],)


def test_ranks_0_to_8():
    for rank in range(9):
        x = np.arange(2**rank, dtype=np.uint8).reshape((2,) * rank)
        real = jquant.dequantize_linear(x, 0.5, 3)
        assert_equal(real, reference.dequantize_linear(x, FLOAT32(0.5), 3))
        assert_equal(jquant.quantize_linear(real, 0.5, 3), x)
        assert_equal(jquant.clip(x, 0, 9), np.minimum(x, 9).astype(np.uint8))
        assert_equal(jquant.quantized_linear_add(x, 1.0, 0, x, 1.0, 0, 2.0), x)


def test_vmap_over_every_argument():
    rng = np.random.default_rng(0)
    a, b = matrix(rng, np.uint8, 3, 4, 5), matrix(rng, np.int8, 3, 5, 6)
    a_zero_point, b_zero_point = matrix(rng, np.uint8, 3, 4), matrix(rng, np.int8, 3)
    expected = np.stack(
        [reference.matmul_integer(*args) for args in zip(a, b, a_zero_point[..., None], b_zero_point, strict=True)]
    )
    assert_equal(jax.vmap(jquant.matmul_integer)(a, b, a_zero_point, b_zero_point), expected)
    scale = samples.scales(rng, 3)
    expected = np.stack([reference.dequantize_linear(*args) for args in zip(b, scale, b_zero_point, strict=True)])
    real = jax.vmap(jquant.dequantize_linear)(b, scale, b_zero_point)
    assert_equal(real, expected)
    assert_equal(jax.vmap(jquant.quantize_linear)(real, scale, b_zero_point), b)


NAMED_CALLS = {
    "dequantize_linear": lambda x, real: jquant.dequantize_linear(x, 0.5),
    "quantize_linear": lambda x, real: jquant.quantize_linear(real, 0.5),
    "dynamic_quantize_linear": lambda x, real: jquant.dynamic_quantize_linear(real),
    "quantized_linear_add": lambda x, real: jquant.quantized_linear_add(x, 0.5, None, x, 0.5, None, 0.5),
    "matmul_integer": lambda x, real: jquant.matmul_integer(x, x),
    "clip": lambda x, real: jquant.clip(real, 0, 1),
    "quantize": lambda x, real: jquant.quantize(real, 0, 1, "qint8"),
    "dequantize": lambda x, real: jquant.dequantize(x, 0, 1),
}


@pytest.mark.parametrize("name", NAMED_CALLS)
def test_named_scope(name):
    """The operators are found by their names in a profile."""
    program = jax.jit(NAMED_CALLS[name]).lower(jnp.ones((2, 2), jnp.int8), jnp.ones((2, 2), FLOAT32)).compile()
    assert f"/{name}/" in program.as_text()
