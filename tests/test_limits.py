"""Clip with bounds of the tensor's type, and the gradients of both clips: beside the formulas, and beside JAX."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import samples
from cases import assert_equal

import jquant
from jquant import DescriptorError, DescriptorTypeError, reference
from jquant.formulas import clip as limits

SMALL_INTEGERS = np.int8, np.uint8, np.int16, np.uint16
INTEGERS = *SMALL_INTEGERS, np.int32, np.uint32
FLOATS = np.float32, np.float16, jnp.bfloat16
FLOAT_BOUNDS = [-np.inf, -3e9, -1.5, -0.9, 0, 0.9, 7.99, 99.5, 255.9, 70000, 2147483645, 4294967295, np.inf, np.nan]


def integers(dtype):
    """Every value of 8 bits; else a sample, the limits and their neighbours, and what float32 cannot tell apart."""
    info = np.iinfo(dtype)
    if info.bits == 8:
        return np.arange(info.min, info.max + 1).astype(dtype)
    near = [info.min, info.min + 1, -1, 0, 1, 2**24 - 1, 2**24, 2**24 + 1, 2**53 + 1, info.max - 1, info.max]
    near = np.array([x for x in near if info.min <= x <= info.max], dtype)
    return np.concatenate([near, samples.integers(np.random.default_rng(0), dtype, 200)])


def floats(dtype):
    """Around the bounds, of every magnitude, infinities and NaN."""
    x = np.array([-2, -1, -0.0, 0, 0.5, 1, 2, 6, 7, 65504], np.float32)
    x = np.concatenate(
        [x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf), samples.wide_floats(np.random.default_rng(1), 99)]
    )
    with np.errstate(over="ignore"):
        return samples.without_subnormals(x).astype(dtype)


BOUNDS = [-np.inf, -1, -0.0, 0, 0.5, 1, 6, np.inf, np.nan]


def of_pairs(function, x, *others, bounds):
    """For each pair of bounds, by one program."""
    low, high = (np.array(bound, x.dtype) for bound in zip(*itertools.product(bounds, repeat=2), strict=True))
    return low, high, jax.jit(jax.vmap(lambda low, high: function(x, *others, low, high)))(low, high)


def level(x):
    return "EXTENDED" if x.dtype == jnp.bfloat16 else "6_4"


def inputs_and_bounds():
    for dtype in INTEGERS:
        info = np.iinfo(dtype)
        yield integers(dtype), [info.min, info.min + 1, 0, 1, info.max // 2, info.max - 1, info.max]
    for dtype in FLOATS:
        yield floats(dtype), BOUNDS


@pytest.mark.parametrize(("x", "bounds"), list(inputs_and_bounds()), ids=lambda x: str(getattr(x, "dtype", "")))
class TestOfEveryType:
    def test_clip1(self, x, bounds):
        low, high, actual = of_pairs(lambda *a: jquant.clip1(*a, feature_level=level(x)), x, bounds=bounds)
        zero = np.zeros((), x.dtype)  # -0 + 0 is 0: which zero is the larger is nowhere said
        assert_equal(np.asarray(actual) + zero, reference.clip1(x, low[:, None], high[:, None]) + zero)

    def test_clip_gradient1(self, x, bounds):
        gradient = (np.arange(x.size) % 100 + 1).astype(x.dtype)
        low, high, actual = of_pairs(
            lambda *a: jquant.clip_gradient1(*a, feature_level=level(x)), x, gradient, bounds=bounds
        )
        assert_equal(actual, reference.clip_gradient1(x, gradient, low[:, None], high[:, None]))


@pytest.mark.parametrize("x", [*map(integers, INTEGERS), *map(floats, FLOATS)], ids=lambda x: str(x.dtype))
def test_clip_gradient(x):
    """Its bounds are float32, and are cast as those of `clip`."""
    gradient = (np.arange(x.size) % 100 + 1).astype(x.dtype)
    low, high = np.float32(list(itertools.product(FLOAT_BOUNDS + BOUNDS, repeat=2))).T

    function = jax.vmap(lambda low, high: jquant.clip_gradient(x, gradient, low, high, feature_level=level(x)))
    actual = jax.jit(function)(low, high)
    expected = [reference.clip_gradient(x, gradient, *bounds) for bounds in zip(low, high, strict=True)]
    assert_equal(actual, np.stack(expected))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("clip", "gradient_of"), [("clip", "clip_gradient"), ("clip1", "clip_gradient1")])
def test_the_gradient_is_that_of_jax(clip, gradient_of, dtype):
    """With every pair of bounds, whatever the gradient that comes in: infinities and NaN as well."""
    x = floats(dtype)
    gradient = np.random.default_rng(2).permutation(x)
    options = {"feature_level": level(x)}
    low, high = np.float32(list(itertools.product(BOUNDS, repeat=2))).T
    low, high = (low, high) if clip == "clip" else (low.astype(dtype), high.astype(dtype))

    @jax.jit
    @jax.vmap
    def both(low, high):
        _, pull = jax.vjp(lambda x: getattr(jquant, clip)(x, low, high, **options), x)
        return getattr(jquant, gradient_of)(x, gradient, low, high, **options), *pull(gradient)

    assert_equal(*both(low, high))


def test_one_rule(monkeypatch):
    """The derivative of the clips and the operators for the gradient follow from one function."""
    x, gradient, bounds = jnp.array([-1.0, 0.5, 7.0]), jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 6.0])

    def results():
        (derivative,) = jax.vjp(lambda x: limits.clip(x, *bounds, None), x)[1](gradient)
        return derivative.tolist(), limits.gradient(x, gradient, *bounds).tolist()

    assert results() == ([0, 2, 0], [0, 2, 0])
    monkeypatch.setattr(limits, "_is_inside", lambda x, min, max: x > max)
    assert results() == ([0, 0, 3], [0, 0, 3])


@pytest.mark.parametrize("function", [jquant.clip_gradient, jquant.clip_gradient1])
def test_the_gradient_broadcasts_to_the_input(function):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for sizes in ((), (1, 1), (2, 1), (1, 3)):
        expected = np.where((x > 0) & (x < 4), np.full(sizes, 7, np.float32), np.float32(0))
        assert_equal(function(x, np.full(sizes, 7, np.float32), 0, 4), expected)
    for sizes in ((3,), (1, 2, 3), (3, 3)):
        with pytest.raises(DescriptorError, match="InputGradientTensor has sizes"):
            function(x, np.ones(sizes, np.float32), 0, 4)
    with pytest.raises(DescriptorError, match="InputGradientTensor has sizes"):
        function(x[:1], x, 0, 4)
    assert function(x[:0], x[:0], 0, 4).shape == (0, 3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_scale_bias_of_clip1(dtype):
    x, bounds = floats(dtype), np.array([-1, 6], dtype)
    actual = jquant.clip1(x, *bounds, scale_bias=(1.1, -0.3), feature_level=level(x))
    assert_equal(actual, reference.clip1(x, *bounds, (1.1, -0.3)))
    with pytest.raises(DescriptorTypeError, match=r"CLIP1: ScaleBias\.Scale has data type FLOAT16, but is a FLOAT"):
        jquant.clip1(x, *bounds, scale_bias=(np.float16(1), 0.0), feature_level=level(x))
    with pytest.raises(
        DescriptorTypeError, match="CLIP1: ScaleBias is defined for float types; InputTensor has data type I"
    ):
        jquant.clip1(np.ones(3, np.int8), 0, 1, scale_bias=(1.0, 0.0))


def clip1(x, low, high):
    return jquant.clip1(x, low, high)


def clip_gradient1(x, low, high):
    return jquant.clip_gradient1(x, x, low, high)


@pytest.mark.parametrize("function", [clip1, clip_gradient1])
@pytest.mark.parametrize("name", ["Min", "Max"])
class TestTypedBounds:
    def call(self, function, name, value, dtype):
        low, high = (value, 1) if name == "Min" else (0, value)
        return function(np.ones(3, dtype), low, high)

    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_python_integers_in_range(self, function, name, dtype):
        info, kind = np.iinfo(dtype), np.dtype(dtype).name.upper()
        for value in (int(info.min), int(info.max)):
            assert self.call(function, name, value, dtype).dtype == dtype
        for value in (int(info.min) - 1, int(info.max) + 1):
            with pytest.raises(DescriptorError, match=f": {name} is {value}, outside of {kind}, "):
                self.call(function, name, value, dtype)
        with pytest.raises(DescriptorTypeError, match=f": {name} is 1.0, but must be an integer of type {kind}"):
            self.call(function, name, 1.0, dtype)

    def test_python_floats_in_range(self, function, name):
        for value in (65504, -np.inf, 0.1):
            assert self.call(function, name, value, np.float16).dtype == np.float16
        with pytest.raises(DescriptorError, match=f": {name} is 70000, outside of FLOAT16, "):
            self.call(function, name, 70000, np.float16)

    @pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32])
    def test_arrays_of_the_type_of_the_input(self, function, name, dtype):
        kind = np.dtype(dtype).name.upper()
        assert self.call(function, name, np.zeros((), dtype), dtype).dtype == dtype
        for other in {np.int8, np.uint8, np.float16, np.float32, np.int32, np.bool} - {dtype}:
            given = np.dtype(other).name.upper()
            text = f": {name} has data type {given}; it must have that of InputTensor, {kind}"
            with pytest.raises(DescriptorTypeError, match=text):
                self.call(function, name, np.zeros((), other), dtype)
        assert self.call(function, name, np.zeros((1, 1), dtype), dtype).dtype == dtype
        for sizes in ((2,), (3, 1), (0,)):
            with pytest.raises(DescriptorError, match=rf": {name} has sizes .*, but must have 1 element"):
                self.call(function, name, np.zeros(sizes, dtype), dtype)


@pytest.mark.parametrize("name", ["Min", "Max"])
def test_bounds_of_clip_gradient_are_floats(name):
    x = np.ones(3, np.int8)
    for dtype in (np.float16, np.int8, np.int32):
        with pytest.raises(DescriptorTypeError, match=f"CLIP_GRAD: {name} has data type .*, but is a FLOAT"):
            jquant.clip_gradient(x, x, **{"min": 0, "max": 1, name.lower(): np.zeros((), dtype)})
    with pytest.raises(DescriptorError, match=f"CLIP_GRAD: {name} has sizes .*, but must have 1 element"):
        jquant.clip_gradient(x, x, **{"min": 0, "max": 1, name.lower(): np.zeros(2, np.float32)})
    assert jquant.clip_gradient(x, x, **{"min": 0, "max": 1, name.lower(): np.zeros(1, np.float32)}).shape == (3,)
    with pytest.raises(DescriptorError, match=rf"CLIP_GRAD: {name} is 1e\+39, outside of FLOAT32"):
        jquant.clip_gradient(x, x, **{"min": 0, "max": 1, name.lower(): 1e39})


@pytest.mark.parametrize("function", [jquant.clip_gradient, jquant.clip_gradient1])
def test_derivative_of_the_gradient(function):
    """Linear in the gradient that comes in; 0 in the input and in the bounds."""
    x, gradient = jnp.array([-1.0, 0.5, 3.0, jnp.nan]), jnp.array([5.0, jnp.inf, 7.0, 8.0])
    pulled = jax.vjp(lambda *a: function(*a), x, gradient, jnp.float32(0), jnp.float32(3))[1](jnp.full(4, 2.0))
    assert [dot.tolist() for dot in pulled] == [[0] * 4, [0, 2, 0, 2], 0, 0]
