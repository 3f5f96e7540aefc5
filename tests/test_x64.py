"""64-bit integers, and the other operators where ``jax_enable_x64`` is set: the results must be the same."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jquant
from jquant import reference


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_clip(dtype):
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.max, 0, 1, 7, 2**31, 2**33 + 1, 2**53 + 1], dtype)
    for low, high in [(-np.inf, np.inf), (0, 2**33), (-1e30, 1e30), (3.9, 2.0**62), (5, 2), (-9e18, 9e18)]:
        actual = jquant.clip(x, low, high)
        assert actual.dtype == dtype
        np.testing.assert_array_equal(actual, reference.clip(x, low, high))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_typed_bounds_are_exact(dtype):
    """Next to each other where neither float32 nor float64 tells them apart."""
    info = np.iinfo(dtype)
    near = [0, 1, 2**31, 2**53, 2**53 + 1, 2**53 + 2, 2**62 + 1, info.min, info.min + 1, info.max - 1, info.max]
    x = np.array(near, dtype)
    gradient = np.arange(1, x.size + 1).astype(dtype)
    for low, high in itertools.product(map(int, near), repeat=2):
        np.testing.assert_array_equal(jquant.clip1(x, low, high), reference.clip1(x, low, high), strict=True)
        expected = reference.clip_gradient1(x, gradient, low, high)
        np.testing.assert_array_equal(jquant.clip_gradient1(x, gradient, low, high), expected, strict=True)
    for function in (jquant.clip1, lambda x, *bounds: jquant.clip_gradient1(x, x, *bounds)):
        with pytest.raises(jquant.DescriptorError, match=f": Max is {info.max + 1}, outside of {x.dtype.name.upper()}, "):
            function(x, 0, info.max + 1)


def test_clip_gradient_has_no_64_bit_integers():
    x = np.ones(3, np.int64)
    with pytest.raises(jquant.DescriptorTypeError, match="InputTensor has data type INT64; DML_FEATURE_LEVEL_6_4 allows"):
        jquant.clip_gradient(x, x, 0, 1)


def test_64_bit_integers_from_feature_level_5_0_on():
    with pytest.raises(jquant.DescriptorTypeError, match="INT64 is allowed from DML_FEATURE_LEVEL_5_0 on"):
        jquant.clip(np.ones(3, np.int64), feature_level="4_1")


def test_float64_is_outside_of_every_table():
    for call in (
        lambda x: jquant.clip(x),
        lambda x: jquant.quantize_linear(x, 0.5),
        lambda x: jquant.quantize(x, 0, 1, "qint8"),
        lambda x: jquant.dequantize_linear(np.ones(3, np.int8), x),
    ):
        with pytest.raises(jquant.DescriptorTypeError, match="FLOAT64"):
            call(np.ones(3))


def test_the_results_are_those_without_x64():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 64)).astype(np.float32)
    a, b = rng.integers(0, 256, (64, 64), np.uint8), rng.integers(-128, 128, (64, 64), np.int8)
    scale = np.float32(0.0123)

    def results():
        return (
            jquant.dequantize_linear(b, scale, 3),
            jquant.dequantize_linear(b.astype(np.int32), np.float16(scale), 3),
            jquant.quantize_linear(x, scale, 3),
            jquant.quantize_linear(x, np.full((64, 3), scale), axis=1, block_size=30, output_dtype="INT4"),
            jquant.pack_integers(jquant.unpack_integers(a, "INT2")),
            *jquant.dynamic_quantize_linear(x),
            *jquant.scale_and_zero_point(-1, 2, "INT8"),
            jquant.quantized_linear_add(a, 0.1, 3, b, 0.2, None, 0.3, 5),
            jquant.matmul_integer(a, b, 3, 5),
            jquant.quantized_linear_multiply(a, 0.1, 3, b, 0.2, None, 0.3, 5),
            jquant.quantized_linear_leaky_relu(b, 0.1, 3, 0.3, 5),
            jquant.quantized_linear_concat([(a, 0.1, 3), (b, 0.2, None)], 0.3, 5, axis=0),
            jquant.clip(x, -0.5, 0.5, scale_bias=(2, 1)),
            jquant.clip1(x, -0.5, 0.5, scale_bias=(2, 1)),
            jquant.clip_gradient(x, x, -0.5, 0.5),
            jquant.clip_gradient1(x, x, -0.5, 0.5),
            *jquant.quantize(x, -1, 1, "qint8"),
            *jquant.quantize(x, -1, 1, "qint32", mode="SCALED"),
            jquant.quantize_and_dequantize(x),
            jquant.fake_quantize(x, -1, 1),
            jquant.dequantize(b, -1, 1, mode="MIN_FIRST"),
            *jquant.quantize_down_and_shrink_range(x.view(np.int32), -1, 1),
            *jquant.requantize(x.view(np.int32), -1, 1, -0.5, 0.25, dtype="qint8"),
            *jquant.requantize_per_channel(x.view(np.int32), -abs(x[0]), abs(x[0]), -0.5, 0.25),
            *jquant.requantization_range_per_channel(x.view(np.int32), -abs(x[0]), abs(x[0])),
        )

    with jax.enable_x64(False):
        expected = results()
    for actual, other in zip(results(), expected, strict=True):
        assert actual.dtype == other.dtype
        np.testing.assert_array_equal(actual, other)
    gradient = jax.grad(lambda s: jnp.sum(jquant.dequantize_linear(b, s)))(scale)
    assert gradient.dtype == np.float32
