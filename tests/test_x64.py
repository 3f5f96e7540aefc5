"""With ``jax_enable_x64``: operators on 64-bit integers, and the same results as without it from all others."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.sampling import one_in

import jquant
from jquant.cases import CASES
from jquant.reference import clipping as clipping_reference
from jquant.reference import linear as linear_reference
from jquant.reference import tensorflow as tensorflow_reference


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
        np.testing.assert_array_equal(actual, clipping_reference.clip(x, low, high))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_typed_bounds_are_exact(dtype):
    """Neighbouring integers are told apart where float32 and float64 round them to the same number."""
    info = np.iinfo(dtype)
    near = [0, 1, 2**31, 2**53, 2**53 + 1, 2**53 + 2, 2**62 + 1, info.min, info.min + 1, info.max - 1, info.max]
    x = np.array(near, dtype)
    gradient = np.arange(1, x.size + 1).astype(dtype)
    for low, high in itertools.product(map(int, near), repeat=2):
        np.testing.assert_array_equal(jquant.clip1(x, low, high), clipping_reference.clip1(x, low, high), strict=True)
        expected = clipping_reference.clip_gradient1(x, gradient, low, high)
        np.testing.assert_array_equal(jquant.clip_gradient1(x, gradient, low, high), expected, strict=True)
    for function in (jquant.clip1, lambda x, *bounds: jquant.clip_gradient1(x, x, *bounds)):
        with pytest.raises(
            jquant.DescriptorError, match=f": max is {info.max + 1}, outside the range of {x.dtype.name.upper()}, "
        ):
            function(x, 0, info.max + 1)


def test_clip_gradient_has_no_64_bit_integers():
    x = np.ones(3, np.int64)
    with pytest.raises(jquant.DescriptorTypeError, match="input has data type INT64; DML_FEATURE_LEVEL_6_4 allows"):
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


@one_in(4, "name", CASES, others="full")
def test_the_results_are_those_of_the_formula(name):
    """They do not depend on ``jax_enable_x64``."""
    case = CASES[name]
    arguments = case.arguments()
    assert_equal(case.function(*arguments), case.formula(*arguments))


def test_a_product_in_chunks():
    """Packed weights, whose last block is padded with rows."""
    a, scale = np.arange(6 * 600, dtype=np.float32).reshape(6, 600), np.ones((5, 3), np.float32)
    packed = jquant.pack_matrix(np.ones((600, 3), jnp.int4), scale=scale, block_size=128)
    assert_equal(jquant.matmul_n_bits(a, packed), np.repeat(a.sum(1, keepdims=True), 3, 1))


def test_of_another_scale_type_and_other_integers():
    b, scale = np.arange(-128, 128, dtype=np.int32), np.float16(0.0123)
    assert_equal(jquant.dequantize_linear(b, scale, 3), linear_reference.dequantize_linear(b, scale, 3))
    x = np.linspace(-2, 2, 999, dtype=np.float32)
    bounds = np.float32(-1), np.float32(1)
    expected = jquant.QuantizeOutput(*tensorflow_reference.quantize(x, *bounds, np.int32, "SCALED"))
    assert_equal(jquant.quantize(x, *bounds, "qint32", mode="SCALED"), expected)


def test_a_gradient_is_float32():
    b, scale = np.arange(-128, 128, dtype=np.int8), np.float32(0.0123)
    gradient = jax.grad(lambda s: jnp.sum(jquant.dequantize_linear(b, s)))(scale)
    assert gradient.dtype == np.float32
