"""`clip`: float32 bounds, cast to the dtype of the input, scale and bias, and errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.signatures import f32, raises, told

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples
from jquant.reference import clipping as reference

FLOAT32 = np.float32


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_bounds_are_cast_to_integers(dtype):
    rng = np.random.default_rng(0)
    x = np.concatenate([samples.integers(rng, dtype, 1000), np.arange(100).astype(dtype)])
    bounds = [-np.inf, -3e9, -1.5, -0.9, 0, 0.9, 7.99, 99.5, 255.9, 70000, 2147483645, 4294967295, np.inf, np.nan]
    for low, high in itertools.product(bounds, repeat=2):
        assert_equal(jquant.clip(x, low, high), reference.clip(x, low, high))


def test_documented_casts():
    assert_equal(jquant.clip(np.uint8([0, 9]), -1.5, 255.9), np.uint8([0, 9]))
    assert_equal(jquant.clip(np.int32([-5, 5]), -0.9, 2147483645), np.int32([0, 5]))
    assert_equal(jquant.clip(np.int8([-5, 5]), np.nan), np.int8([0, 5]))
    assert_equal(jquant.clip(np.float16([60000, np.inf]), max=70000), np.float16([60000, np.inf]))
    assert_equal(jquant.clip(np.float16([np.inf]), max=65519.99), np.float16([65504]))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint32])
def test_min_greater_than_max_gives_min(dtype):
    x = np.array([0, 3, 100], dtype)
    assert_equal(jquant.clip(x, 7, 2), np.full(3, 7, dtype))


def test_nan():
    x = FLOAT32([np.nan, 1, np.inf])
    assert_equal(jquant.clip(x, 0, 6), FLOAT32([np.nan, 1, 6]))
    assert_equal(jquant.clip(x, np.nan, 6), np.full(3, np.nan, FLOAT32))
    assert_equal(jquant.clip(x, 0, np.nan), np.full(3, np.nan, FLOAT32))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_scale_bias(dtype):
    rng = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        x = samples.wide_floats(rng, 100_000).astype(dtype)
    expected = reference.clip(x, -3, 65519.99, (1.1, -0.3))
    actual = jquant.clip(x, -3, 65519.99, scale_bias=(1.1, -0.3), feature_level="EXTENDED")
    assert_equal(actual, expected)


def test_donated_input_is_overwritten():
    x = jnp.linspace(-1, 9, 1000, dtype=FLOAT32)
    address, expected = x.unsafe_buffer_pointer(), reference.clip(np.asarray(x), 0, 6)
    y = jax.jit(jquant.clip, donate_argnums=0)(x, 0, 6)
    assert y.unsafe_buffer_pointer() == address
    assert_equal(y, expected)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 4)])
def test_empty_arrays(shape):
    assert jquant.clip(np.zeros(shape, np.int8), 0, 1).shape == shape


def test_ranks_0_to_8():
    for rank in range(9):
        x = np.arange(2**rank, dtype=np.uint8).reshape((2,) * rank)
        assert_equal(jquant.clip(x, 0, 9), np.minimum(x, 9).astype(np.uint8))


DOCUMENTED = {"min": "Min", "max": "Max", "scale_bias.scale": "ScaleBias.Scale", "scale_bias.bias": "ScaleBias.Bias"}


@pytest.mark.parametrize("name", ["min", "max", "scale_bias.scale", "scale_bias.bias"])
def test_python_scalars(name):
    floats = {"min": 0, "max": 1, "scale_bias.scale": 1, "scale_bias.bias": 0, name: 1e39}
    with pytest.raises(DescriptorError, match=rf"clip: {name} is 1e\+39, outside the range of FLOAT32, "):
        jquant.clip(
            jnp.ones(2, jnp.float16),
            floats["min"],
            floats["max"],
            scale_bias=jquant.ScaleBias(floats["scale_bias.scale"], floats["scale_bias.bias"]),
        )


@pytest.mark.parametrize("name", ["min", "max", "scale_bias.scale", "scale_bias.bias"])
class TestBounds:
    def clip(self, name, value):
        floats = {"min": 0.0, "max": 1.0, "scale_bias.scale": 1.0, "scale_bias.bias": 0.0, name: value}
        scale_bias = jquant.ScaleBias(floats["scale_bias.scale"], floats["scale_bias.bias"])
        return jquant.clip(jnp.ones(2, jnp.float16), floats["min"], floats["max"], scale_bias=scale_bias)

    @pytest.mark.parametrize("value", [0, 1.5, np.float32(1), jnp.float32(1), np.zeros((), np.float32)], ids=repr)
    def test_accepted(self, name, value):
        assert self.clip(name, value).dtype == jnp.float16

    @pytest.mark.parametrize("sizes", [(1,), (1, 1)], ids=str)
    def test_one_element(self, name, sizes):
        assert self.clip(name, jnp.zeros(sizes, f32)).shape == (2,)

    @pytest.mark.parametrize("sizes", [(2,), (1, 2), (0,)], ids=str)
    def test_one_element_only(self, name, sizes):
        with raises(told("clip", name, f"has shape {sizes}, but must have 1 element", DOCUMENTED[name])):
            self.clip(name, jnp.zeros(sizes, f32))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "uint8", "bool", "complex64"])
    def test_floats_only(self, name, dtype):
        text = f"has data type {dtype.upper()}; it must be FLOAT32"
        with raises(told("clip", name, text, DOCUMENTED[name]), DescriptorTypeError):
            self.clip(name, jnp.zeros((), dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_scale_bias_is_for_floats(dtype):
    x = jnp.ones(2, dtype)
    assert jquant.clip(x, 0, 1).dtype == x.dtype
    text = f"is defined only for float types; input has data type {dtype.upper()}"
    with raises(told("clip", "scale_bias", text, "ScaleBias"), DescriptorTypeError):
        jquant.clip(x, 0, 1, scale_bias=jquant.ScaleBias(2, 1))
