"""`dynamic_quantize_linear`: what no engine covers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import assert_equal
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from signatures import DATA_TYPES, level_name, of
from signatures import x64 as x64

import jquant
from jquant import DescriptorError, DescriptorTypeError, FeatureLevel, reference
from jquant.cases import samples

FLOAT32 = np.float32
both_types = pytest.mark.parametrize("dtype", [np.uint8, np.int8])


@functools.cache
def program(dtype):
    return jax.jit(functools.partial(jquant.dynamic_quantize_linear, output_dtype=dtype, feature_level="EXTENDED"))


def assert_formula(x, dtype):
    output = jquant.DynamicQuantizeOutput(*reference.dynamic_quantize_linear(x, dtype=dtype))
    assert_equal(program(dtype)(x), output, f"{x}")
    return output


@both_types
@pytest.mark.parametrize("input_dtype", [np.float32, np.float16, jnp.bfloat16])
def test_ranges(input_dtype, dtype):
    """Both sides of zero, one side, of any magnitude; and ties, among them those of the zero point."""
    rng = np.random.default_rng(0)
    for low, high in [(-1, 1), (0, 1), (-1, 0), (0.5, 1), (-1, -0.5), (-1e-3, 1), (-1, 1e-3), (0, 0)]:
        for scale in samples.scales(rng, 8):
            assert_formula((rng.uniform(low, high, 1000) * scale).astype(input_dtype), dtype)
    for half_steps in range(0, 511, 7):  # the scale is 1, and the zero point lies halfway between two integers, or on one
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
    """The bits of one device, wherever the largest value, the smallest or a NaN lies."""
    x = np.linspace(-1, 1, 64, dtype=FLOAT32)
    x[where] = value
    mesh = jax.make_mesh((8,), ("x",))
    split = jax.device_put(x, NamedSharding(mesh, P("x")))
    with jax.set_mesh(mesh):
        actual = program(np.uint8)(split)
    assert_equal(actual, jquant.DynamicQuantizeOutput(*reference.dynamic_quantize_linear(x)))


def test_the_derivative_of_the_scale():
    """That of the largest value less that of the smallest, over 255; equal ones share it."""

    def scale(x):
        return jquant.dynamic_quantize_linear(x).scale

    step = FLOAT32(1) / FLOAT32(255)
    np.testing.assert_array_equal(jax.grad(scale)(FLOAT32([-1, 0, 3, 2])), FLOAT32([-step, 0, step, 0]))
    np.testing.assert_array_equal(jax.grad(scale)(FLOAT32([1, 3, 3])), FLOAT32([0, step / 2, step / 2]))
    np.testing.assert_array_equal(jax.jvp(scale, (FLOAT32([-1, 3]),), (FLOAT32([1, 1]),))[1], FLOAT32(0))
    np.testing.assert_array_equal(jax.grad(scale)(np.zeros(2, FLOAT32)), np.zeros(2, FLOAT32))


def test_its_inverse():
    """The other operators take its outputs."""
    x = FLOAT32([-1, 0, 0.25, 1.55])
    output, scale, zero_point = jquant.dynamic_quantize_linear(x)
    np.testing.assert_allclose(jquant.dequantize_linear(output, scale, zero_point), x, atol=scale / 2)


class TestArguments:
    """It has several outputs: the tests of the tables, which are of one, do not have it."""

    def outcome(self, level="6_4", shape=(2, 3), dtype="float32", output="uint8"):
        function = functools.partial(jquant.dynamic_quantize_linear, output_dtype=output, feature_level=level)
        try:
            result = jax.eval_shape(function, of(*shape, dtype=dtype))
        except DescriptorError as error:
            return type(error), str(error).removeprefix("DML_DYNAMIC_QUANTIZE_LINEAR: ")
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
                text = f"InputTensor has data type {dtype.upper()}; {name} allows {names}{hint}"
                expected = DescriptorTypeError, text
            assert self.outcome(level, dtype=dtype) == expected
            expected = [((2, 3), dtype), ((), "float32"), ((), dtype)]
            if dtype not in ("int8", "uint8"):
                text = f"OutputTensor has data type {dtype.upper()}; {name} allows INT8, UINT8"
                expected = DescriptorTypeError, text
            assert self.outcome(level, output=dtype) == expected

    @pytest.mark.parametrize("rank", [0, 1, 8, 9])
    def test_ranks(self, rank):
        expected = [((2,) * rank, "uint8"), ((), "float32"), ((), "uint8")]
        if rank == 9:
            text = f"InputTensor has 9 dimensions, sizes {(2,) * 9}; DML_FEATURE_LEVEL_6_4 allows 1 to 8"
            expected = DescriptorError, text
        assert self.outcome(shape=(2,) * rank) == expected

    @pytest.mark.parametrize("level", ["1_0", "3_1"])
    def test_levels(self, level):
        text = f"not available before DML_FEATURE_LEVEL_4_0; DML_FEATURE_LEVEL_{level} was given"
        assert self.outcome(level) == (DescriptorError, text)
