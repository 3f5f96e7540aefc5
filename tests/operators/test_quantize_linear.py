"""`quantize_linear`: rounding, zero point and saturation, in this order, for every type and granularity; output types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.sampling import one_in
from support.signatures import of, outcome, result_of, told, valid

import jquant
from jquant import DescriptorError, DescriptorTypeError, FeatureLevel
from jquant.cases import samples
from jquant.reference import linear as reference

from .affine import EXTENDED, FLOAT32, FLOATS, NARROW_FLOATS, SIZES, TYPES, every_form, jitted


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_int32_input(dtype):
    rng = np.random.default_rng(0)
    x = np.concatenate([samples.integers(rng, np.int32, 1000), rng.integers(-9999, 9999, 100_000, np.int32)])
    for scale in samples.scales(rng, 20):
        assert_equal(jquant.quantize_linear(x, scale, dtype(7)), reference.quantize_linear(x, scale, 7, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_special_values(dtype):
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 65504], dtype)
    for scale in (1.0, -1.0, 0.0, np.inf, np.nan):
        actual = jquant.quantize_linear(x, scale, 3, output_dtype="INT8", feature_level="EXTENDED")
        assert_equal(actual, reference.quantize_linear(x, np.array(scale, dtype), 3, np.int8))


def test_output_data_type():
    x = jnp.ones(2, FLOAT32)
    assert jquant.quantize_linear(x, 1.0).dtype == jnp.uint8
    assert jquant.quantize_linear(x, 1.0, 3).dtype == jnp.uint8
    assert jquant.quantize_linear(x, 1.0, np.int8(3)).dtype == jnp.int8
    assert jquant.quantize_linear(x, 1.0, 3, output_dtype=jnp.int8).dtype == jnp.int8


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 4)])
def test_empty_arrays(shape):
    scale = np.full((1,) * len(shape), 0.5, FLOAT32)
    assert jquant.quantize_linear(np.zeros(shape, FLOAT32), scale).shape == shape


def test_ranks_0_to_8():
    for rank in range(9):
        x = np.arange(2**rank, dtype=np.uint8).reshape((2,) * rank)
        assert_equal(jquant.quantize_linear(reference.dequantize_linear(x, FLOAT32(0.5), 3), 0.5, 3), x)


def test_vmap_over_every_argument():
    rng = np.random.default_rng(0)
    x, scale, zero_point = samples.integers(rng, np.int8, 3, 5, 6), samples.scales(rng, 3), samples.integers(rng, np.int8, 3)
    real = np.stack([reference.dequantize_linear(*call) for call in zip(x, scale, zero_point, strict=True)])
    assert_equal(jax.vmap(jquant.quantize_linear)(real, scale, zero_point), x)


@pytest.mark.parametrize(
    ("dtype", "limit", "level", "type_name"),
    [
        ("float32", 3.4e38, "6_4", "FLOAT32"),
        ("int32", 3.4e38, "6_4", "FLOAT32"),
        ("float16", 65504, "6_4", "FLOAT16"),
        ("bfloat16", 3.38e38, "EXTENDED", "BFLOAT16"),
    ],
)
def test_python_scales(dtype, limit, level, type_name):
    """A Python scale has the dtype of the input, and float32 for an int32 input."""
    x = jnp.array([0], dtype)
    assert jquant.quantize_linear(x, limit, feature_level=level).tolist() == [0]
    with pytest.raises(DescriptorError, match=f"scale is .*, outside the range of {type_name}, "):
        jquant.quantize_linear(x, limit * 1.01, feature_level=level)


def test_python_zero_points():
    x = np.zeros(1, FLOAT32)
    for value, dtype in ((255, "uint8"), (-128, "int8")):
        result = jquant.quantize_linear(x, 1.0, value, output_dtype=dtype)
        assert (result.dtype, result.tolist()) == (dtype, [value])
    with pytest.raises(DescriptorError, match=r"zero_point is -1, outside the range of UINT8, \[0, 255\]"):
        jquant.quantize_linear(x, 1.0, -1)  # the default is uint8
    with pytest.raises(DescriptorError, match=r"zero_point is 128, outside the range of INT8, \[-128, 127\]"):
        jquant.quantize_linear(x, 1.0, 128, output_dtype="int8")


def test_output_data_type_of_jax_arrays():
    x = jnp.ones(2)
    assert jquant.quantize_linear(x, 1.0).dtype == jnp.uint8
    assert jquant.quantize_linear(x, 1.0, 3).dtype == jnp.uint8
    assert jquant.quantize_linear(x, 1.0, jnp.int8(3)).dtype == jnp.int8
    assert jquant.quantize_linear(x, 1.0, 3, output_dtype="INT8").dtype == jnp.int8


@pytest.mark.parametrize(("input", "scale"), [("float32", "float16"), ("float16", "float32"), ("int32", "float16")])
def test_the_scale_has_the_data_type_of_the_input(input, scale):
    """They may differ at `FeatureLevel.EXTENDED`, as in ONNX."""
    tensors = valid("quantize_linear", FeatureLevel.LATEST)
    tensors |= {"InputTensor": of(2, dtype=input), "ScaleTensor": of(2, dtype=scale), "ZeroPointTensor": None}
    tensors["OutputTensor"] = of(2)
    text = f"has data type {scale.upper()}, input has {input.upper()}; below FeatureLevel.EXTENDED they must be the same"
    expected = told("quantize_linear", "scale", f"{text}, or FLOAT32 with INT32", "ScaleTensor", "InputTensor")
    assert outcome("quantize_linear", FeatureLevel.LATEST, tensors) == (DescriptorTypeError, expected)
    assert outcome("quantize_linear", FeatureLevel.EXTENDED, tensors) == result_of(tensors)


@one_in(5, "dtype", TYPES, ids=str)
def test_every_granularity(dtype):
    rng = np.random.default_rng(1)
    limits = jnp.iinfo(dtype)
    x = samples.near_ties(rng, np.prod(SIZES), 0.5, 2 * limits.min - 3, 2 * limits.max + 3).reshape(SIZES)
    x[0, 0] = np.inf, -np.inf, np.nan, 3e38, -3e38
    forms = [*every_form(rng, dtype, FLOAT32)]
    outputs = jitted(jquant.quantize_linear, x, forms, output_dtype=dtype, **EXTENDED)
    for actual, (scale, zero_point, form) in zip(outputs, forms, strict=True):
        assert_equal(actual, reference.quantize_linear(x, scale, zero_point, dtype, **form), str(form))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_ties_and_limits(dtype):
    """Ties and values next to them, up to both limits, for zero points at and between the limits."""
    limits, rng = jnp.iinfo(dtype), np.random.default_rng(2)
    zero_points = np.unique([limits.min, limits.min + 1, -1, 0, 1, limits.max - 1, limits.max]).clip(limits.min, limits.max)
    width = limits.max - limits.min
    ties = np.arange(-width, width + 1) if width < 256 else np.append(rng.integers(-width, width, 5000), [-width, width])
    ties = (ties + 0.5).astype(FLOAT32)
    x = np.concatenate([np.nextafter(ties, side) for side in FLOAT32([-np.inf, np.inf])] + [ties, ties - FLOAT32(0.5)])
    tile = np.broadcast_to(x, (zero_points.size, x.size))
    zero_point = zero_points.astype(dtype).reshape(-1, 1)
    actual = jquant.quantize_linear(tile, 1.0, zero_point, **EXTENDED)
    assert_equal(actual, reference.quantize_linear(tile, FLOAT32(1), zero_point, dtype))


@pytest.mark.parametrize("scale_dtype", FLOATS, ids=str)
def test_every_float_type(scale_dtype):
    """At `FeatureLevel.EXTENDED`, input and scale have any float type, and both are widened exactly."""
    rng = np.random.default_rng(3)
    real, scale = samples.wide_floats(rng, 1000, 2).clip(-60_000, 60_000), scale_dtype.type(0.0123)
    integers = samples.integers(rng, np.int16, 1000).astype(np.int32)
    for x in (*(real.astype(dtype) for dtype in FLOATS), integers):
        actual = jquant.quantize_linear(x, scale, 7, output_dtype="INT16", **EXTENDED)
        assert_equal(actual, reference.quantize_linear(x, scale, 7, np.int16))


@pytest.mark.parametrize(
    ("form", "sizes"),
    [({"axis": 0}, (0,)), ({"axis": 0, "block_size": 2}, (0, 3)), ({"axis": 1, "block_size": 2}, (0, 2))],
    ids=str,
)
def test_empty_arrays_of_every_granularity(form, sizes):
    assert jquant.quantize_linear(np.zeros((0, 3), FLOAT32), np.ones(sizes, FLOAT32), **form).shape == (0, 3)


HALVES = [np.arange(2**16, dtype=np.uint16).view(jnp.dtype(name)) for name in ("float16", "bfloat16")]


@one_in(9, "dtype", NARROW_FLOATS, ids=str)
def test_every_number_of_16_bits_to_narrow_floats(dtype):
    """With scales that are traced and constant, one of which is 1, and with both settings of `saturate`."""
    for halves in HALVES:
        x = halves[(halves.view(np.uint16) & 0x7F80) != 0] if halves.dtype != np.float16 else halves  # no subnormals
        for saturate in (True, False) if dtype.itemsize == 1 and dtype != jnp.float4_e2m1fn else (True,):
            for scale in map(x.dtype.type, (1, 0.0123)):
                options = {"output_dtype": dtype, "saturate": saturate, **EXTENDED}
                with np.errstate(invalid="ignore"):  # for signalling NaN
                    expected = reference.quantize_linear(x, scale, 0, dtype, saturate=saturate)
                assert_equal(jquant.quantize_linear(x, scale, **options), expected)
                assert_equal(
                    jax.jit(lambda x, scale=scale, options=options: jquant.quantize_linear(x, scale, **options))(x), expected
                )


@one_in(9, "dtype", NARROW_FLOATS, ids=str)
def test_every_granularity_of_narrow_floats(dtype):
    """With zero points, also infinite ones and NaN, which are added to the quotients."""
    rng = np.random.default_rng(4)
    x = samples.wide_floats(rng, int(np.prod(SIZES)), 3).reshape(SIZES)
    forms = [*every_form(rng, dtype, FLOAT32)]
    outputs = jitted(jquant.quantize_linear, x, forms, **EXTENDED)
    for actual, (scale, zero_point, form) in zip(outputs, forms, strict=True):
        assert_equal(actual, reference.quantize_linear(x, scale, zero_point, dtype, **form), str(form))


def test_zero_points_of_narrow_floats():
    """They are added before rounding; the zero point 0 keeps -0."""
    x = np.array([-0.0, 1, 3], FLOAT32)
    for dtype, zero_point, expected in (
        (jnp.float8_e4m3fn, 0, [-0.0, 1, 3]),
        (jnp.float8_e4m3fn, 2, [2, 3, 5]),
        (jnp.float4_e2m1fn, 0, [-0.0, 1, 3]),
        (jnp.float4_e2m1fn, 2, [2, 3, 4]),
    ):
        dtype = jnp.dtype(dtype)
        actual = jquant.quantize_linear(x, 1.0, dtype.type(zero_point), **EXTENDED)
        assert_equal(actual, np.array(expected, dtype))


POWERS_OF_TWO = np.array([0, 1, 110, 127, 130, 253, 254, 255], np.uint8).view(jnp.float8_e8m0fnu)


@pytest.mark.parametrize("dtype", [np.int8, jnp.float8_e4m3fn], ids=["int8", "float8_e4m3fn"])
def test_scales_that_are_powers_of_two(dtype):
    """From 2**-127, which is subnormal in float32, to NaN, along an axis and in blocks."""
    with np.errstate(over="ignore"):
        x = np.outer(samples.near_ties(np.random.default_rng(0), 60, 1, -30, 30), POWERS_OF_TWO[:7].astype(FLOAT32))
    x = np.pad(x, [(0, 0), (0, 1)], constant_values=1).astype(FLOAT32)
    for scale, form in ((POWERS_OF_TWO, {"axis": 1}), (POWERS_OF_TWO[None, ::2], {"axis": 1, "block_size": 2})):
        actual = jax.jit(
            lambda x, scale, form=form: jquant.quantize_linear(x, scale, output_dtype=dtype, **form, **EXTENDED)
        )
        blocks = scale if scale.ndim == 1 else np.broadcast_to(scale, (60, 4))
        assert_equal(actual(x, scale), reference.quantize_linear(x, blocks, 0, dtype, **form))
    with pytest.raises(DescriptorTypeError, match=r"scale has data type FLOAT8E8M0; .*; FLOAT8E8M0 is allowed from"):
        jquant.quantize_linear(x, POWERS_OF_TWO, axis=1)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_precision(precision):
    """The operands and their quotient are rounded to it."""
    rng = np.random.default_rng(0)
    x = samples.near_ties(rng, 6000, 0.1, -40, 40)
    for scale in (FLOAT32(0.1), FLOAT32(0.1).astype(precision), np.uint8(124).view(jnp.float8_e8m0fnu)):
        for dtype in (jnp.int8, jnp.float8_e5m2):
            actual = jquant.quantize_linear(x, scale, output_dtype=dtype, precision=precision, **EXTENDED)
            expected = reference.quantize_linear(x, scale, 0, dtype, precision=jnp.dtype(precision))
            assert_equal(actual, expected)
    assert (np.asarray(actual) != jquant.quantize_linear(x, scale, output_dtype=dtype, **EXTENDED)).any()
    text = f"precision is {precision.upper()}; it must be FLOAT32 below FeatureLevel.EXTENDED"
    with pytest.raises(DescriptorTypeError, match=text):
        jquant.quantize_linear(x, 1.0, precision=precision)


def test_saturation_is_for_floats_of_8_bits():
    x = jnp.ones(2)
    for dtype in (None, "INT8", "FLOAT4E2M1"):
        with pytest.raises(
            DescriptorTypeError,
            match=f"saturate is False, but {dtype or 'UINT8'} has neither infinities nor NaN, so it always",
        ):
            jquant.quantize_linear(x, 1.0, output_dtype=dtype, saturate=False, **EXTENDED)
    with pytest.raises(DescriptorTypeError, match=r"output_dtype is FLOAT8E5M2; .*; FLOAT8E5M2 is allowed from"):
        jquant.quantize_linear(x, 1.0, output_dtype="FLOAT8E5M2")


def test_the_derivative_of_narrow_floats_is_0():
    def total(x, scale):
        return jquant.quantize_linear(x, scale, output_dtype="FLOAT8E5M2", **EXTENDED).astype(FLOAT32).sum()

    assert [gradient.tolist() for gradient in jax.grad(total, (0, 1))(jnp.ones(2), jnp.float32(0.5))] == [[0, 0], 0]
