"""`nvfp4_quantize` and `nvfp4_dequantize`: ties, magnitudes, numbers that are not finite, blocks, and errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from support.comparison import assert_equal
from support.sampling import one_in
from support.signatures import raises

import jquant
from jquant import DescriptorTypeError
from jquant.cases import samples
from jquant.reference import microscaling as reference

FLOAT32 = np.float32


@functools.cache
def programs(axis):
    def quantize(x, tensor_scale):
        return jquant.nvfp4_quantize(x, tensor_scale, axis=axis)

    return jax.jit(quantize), jax.jit(functools.partial(jquant.nvfp4_dequantize, axis=axis))


def both(x, tensor_scale=None, axis=-1):
    """Asserts that quantization and dequantization give the reference's bits; returns the results of both."""
    quantize, dequantize = programs(axis)
    quantized = quantize(x, tensor_scale)
    assert_equal(quantized, jquant.Nvfp4QuantizeOutput(*reference.nvfp4_quantize(x, tensor_scale, axis=axis)))
    back = dequantize(*quantized)
    assert_equal(back, reference.nvfp4_dequantize(*quantized, axis=axis))
    return quantized, np.asarray(back)


@one_in(2, "tensor_scale", [None, 1, 1e-3, 2.0**-20])
def test_ties_and_magnitudes(tensor_scale, gate):
    """Ties of elements and of scales, and tensors whose blocks have scales down to 0."""
    rng = np.random.default_rng(0)
    scale = None if tensor_scale is None else FLOAT32(tensor_scale)
    x = rng.normal(size=(64, 64)) * 10 ** rng.uniform(-6, 1, (64, 1))
    x[:20] = samples.near_ties(rng, 1280, 0.25, -30, 30).reshape(20, 64) * 2.0 ** rng.integers(-10, 3, (20, 1))
    for dtype in (FLOAT32, np.float16, jnp.bfloat16) if gate else (FLOAT32,):
        both(x.astype(dtype), scale)


def test_any_bits():
    x = np.random.default_rng(0).integers(0, 2**32, (64, 64), np.uint32).view(FLOAT32)
    for tensor_scale in (1, 1e30, 1e-20):
        _, back = both(x, FLOAT32(tensor_scale))
        is_finite = np.isfinite(x).reshape(64, 4, 16).all(-1, keepdims=True)
        np.testing.assert_array_equal(~np.isnan(back.reshape(64, 4, 16)), np.broadcast_to(is_finite, (64, 4, 16)))
    both(np.where(np.isfinite(x), x, 1))


@one_in(2, "magnitude", [0, 2.0**-149, 2.0**-126, 1e-30, 2688 * 2.0**-100, 1e38])
def test_tensors_of_one_magnitude(magnitude):
    """A tensor whose scale would be below 2**-100 has scale 1, like zeros."""
    x = np.full((2, 32), magnitude, FLOAT32) * FLOAT32([[1], [-1]])
    (values, scale, tensor_scale), back = both(x)
    if magnitude / 2688 < 2.0**-100:
        assert_equal(tensor_scale, FLOAT32(1))
        assert_equal(scale, np.zeros((2, 2), jnp.float8_e4m3fn))
        assert_equal(back, np.copysign(FLOAT32(0), x))
    else:
        assert_equal(np.asarray(values, FLOAT32), np.copysign(FLOAT32(6), x))
        assert_equal(scale, np.full((2, 2), 448, jnp.float8_e4m3fn))
        np.testing.assert_allclose(back, x, rtol=1e-6)


def test_what_is_not_finite():
    x = np.ones((1, 48), FLOAT32)
    x[0, 0], x[0, 16] = np.nan, -np.inf
    (values, scale, _), back = both(x, FLOAT32(1))
    assert_equal(np.asarray(scale, FLOAT32), FLOAT32([[np.nan, np.nan, 0.171875]]))
    assert_equal(np.isnan(back), np.arange(48)[None] < 32)
    assert_equal(np.asarray(values, FLOAT32), np.full((1, 48), 6, FLOAT32))
    for value in (np.nan, np.inf):
        (_, _, tensor_scale), back = both(np.where(np.isfinite(x), x, FLOAT32(value)))
        assert_equal(tensor_scale, FLOAT32(value))
        assert np.isnan(back).all()


def test_small_blocks():
    """The block with the largest magnitude has scale 448; scales up to 2**-10, half of the smallest number, round to 0."""
    x = np.zeros((3, 16), FLOAT32)
    x[:, 0] = 448 * 6, 6 * 2.0**-10, 6 * 1.001 * 2.0**-10
    (values, scale, tensor_scale), _ = both(x)
    assert_equal(tensor_scale, FLOAT32(1))
    assert_equal(np.asarray(scale, FLOAT32)[:, 0], FLOAT32([448, 0, 2.0**-9]))
    assert_equal(np.asarray(values, FLOAT32)[:, 0], FLOAT32([6, 0, 3]))


def test_zeros_have_the_sign_of_the_input():
    """Elements that round to 0, and blocks with scale 0, as when ml_dtypes converts the quotients."""
    small = FLOAT32([-0.0, 0.0, -0.001, 0.001, -(2.0**-100), 2.0**-100])
    x = np.zeros((3, 16), FLOAT32)
    x[0, 0], x[0, 1:7], x[1, :6], x[2, :6] = 2688, small, small, np.copysign(FLOAT32(0), small)
    (values, scale, tensor_scale), back = both(x)
    assert_equal(tensor_scale, FLOAT32(1))
    assert_equal(np.asarray(scale, FLOAT32)[:, 0], FLOAT32([448, 0, 0]))
    quotients = x / FLOAT32([[448], [1], [1]])
    assert_equal(np.asarray(values).view(np.uint8), quotients.astype(values.dtype).view(np.uint8))
    assert_equal(np.signbit(back), np.signbit(x))
    assert np.signbit(back).sum() == 9


@one_in(2, ("shape", "axis"), [((2, 40), -1), ((40, 3), 0), ((2, 33, 3), 1), ((5,), 0), ((3, 0), 1), ((0, 16), 1)])
def test_blocks(shape, axis):
    both(np.random.default_rng(0).normal(size=shape).astype(FLOAT32), axis=axis)


def test_codes_in_bytes():
    """Of which the lower 4 bits count."""
    rng = np.random.default_rng(1)
    values, scale, tensor_scale = jquant.nvfp4_quantize(rng.normal(size=(3, 40)).astype(FLOAT32))
    codes = np.asarray(values).view(np.uint8) & 15 | (rng.integers(16, size=values.shape).astype(np.uint8) << 4)
    assert_equal(jquant.nvfp4_dequantize(codes, scale, tensor_scale), jquant.nvfp4_dequantize(values, scale, tensor_scale))


def test_the_derivative_is_that_of_the_tensor_scale():
    values, scale = jnp.array([0.5, -6.0], jnp.float4_e2m1fn), jnp.array([448.0], jnp.float8_e4m3fn)
    gradient = jax.grad(lambda t: jquant.nvfp4_dequantize(values, scale, t).sum())(FLOAT32(0.5))
    assert_equal(gradient, FLOAT32(448 * -5.5))
    x = np.linspace(-1, 1, 32, dtype=FLOAT32)
    assert_equal(jax.grad(lambda x: jquant.nvfp4_dequantize(*jquant.nvfp4_quantize(x)).sum())(x), np.zeros(32, FLOAT32))


def test_arguments():
    x = np.zeros((2, 16), FLOAT32)
    values, scale, tensor_scale = jquant.nvfp4_quantize(x)
    with raises("nvfp4_quantize: x has data type INT8; it must be one of FLOAT32, FLOAT16, BFLOAT16", DescriptorTypeError):
        jquant.nvfp4_quantize(x.astype(np.int8))
    with raises("nvfp4_quantize: tensor_scale has shape (2,), but must have 1 element"):
        jquant.nvfp4_quantize(x, np.ones(2, FLOAT32))
    with raises("nvfp4_dequantize: values has data type FLOAT32; it must be one of FLOAT4E2M1, UINT8", DescriptorTypeError):
        jquant.nvfp4_dequantize(x, scale, tensor_scale)
    with raises("nvfp4_dequantize: scale has data type FLOAT32; it must be FLOAT8E4M3FN", DescriptorTypeError):
        jquant.nvfp4_dequantize(values, x[:, :1], tensor_scale)
    text = "scale has shape (2, 1), values (2, 16); with axis=0 and block_size=16 it must be (1, 16)"
    with raises(f"nvfp4_dequantize: {text}"):
        jquant.nvfp4_dequantize(values, scale, tensor_scale, axis=0)
