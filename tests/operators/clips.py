"""Inputs, bounds and tests that the clip operators and their gradients share."""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples

INTEGERS = np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32
FLOATS = np.float32, np.float16, jnp.bfloat16
FLOAT_BOUNDS = [-np.inf, -3e9, -1.5, -0.9, 0, 0.9, 7.99, 99.5, 255.9, 70000, 2147483645, 4294967295, np.inf, np.nan]


def integers(dtype):
    """Every 8-bit value; of wider types the limits, their neighbours, integers that float32 rounds, and a random sample."""
    info = np.iinfo(dtype)
    if info.bits == 8:
        return np.arange(info.min, info.max + 1).astype(dtype)
    near = [info.min, info.min + 1, -1, 0, 1, 2**24 - 1, 2**24, 2**24 + 1, 2**53 + 1, info.max - 1, info.max]
    near = np.array([x for x in near if info.min <= x <= info.max], dtype)
    return np.concatenate([near, samples.integers(np.random.default_rng(0), dtype, 200)])


def floats(dtype):
    """Values at and next to the bounds, of every magnitude, infinities and NaN."""
    x = np.array([-2, -1, -0.0, 0, 0.5, 1, 2, 6, 7, 65504], np.float32)
    x = np.concatenate(
        [x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf), samples.wide_floats(np.random.default_rng(1), 99)]
    )
    with np.errstate(over="ignore"):
        return samples.without_subnormals(x).astype(dtype)


BOUNDS = [-np.inf, -1, -0.0, 0, 0.5, 1, 6, np.inf, np.nan]


def clipped(function, x, *others, bounds):
    """All pairs of bounds, as minima and maxima, and the results for them, from one program."""
    low, high = (np.array(bound, x.dtype) for bound in zip(*itertools.product(bounds, repeat=2), strict=True))
    return low, high, jax.jit(jax.vmap(lambda low, high: function(x, *others, low, high)))(low, high)


def level(x):
    """The feature level that allows the dtype of `x`."""
    return "EXTENDED" if x.dtype == jnp.bfloat16 else "6_4"


def inputs_and_bounds():
    for dtype in INTEGERS:
        info = np.iinfo(dtype)
        yield integers(dtype), [info.min, info.min + 1, 0, 1, info.max // 2, info.max - 1, info.max]
    for dtype in FLOATS:
        yield floats(dtype), BOUNDS


every_type = pytest.mark.parametrize(("x", "bounds"), list(inputs_and_bounds()), ids=lambda x: str(getattr(x, "dtype", "")))


class TypedBounds:
    """Bounds have the dtype of the input. A subclass has the `function` of the input, `min` and `max`."""

    function: Callable

    def call(self, name, value, dtype):
        low, high = (value, 1) if name == "min" else (0, value)
        return self.function(np.ones(3, dtype), low, high)

    @pytest.mark.parametrize("name", ["min", "max"])
    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_python_integers_in_range(self, name, dtype):
        info, type_name = np.iinfo(dtype), np.dtype(dtype).name.upper()
        for value in (int(info.min), int(info.max)):
            assert self.call(name, value, dtype).dtype == dtype
        for value in (int(info.min) - 1, int(info.max) + 1):
            with pytest.raises(DescriptorError, match=f": {name} is {value}, outside the range of {type_name}, "):
                self.call(name, value, dtype)
        with pytest.raises(DescriptorTypeError, match=f": {name} is 1.0, but must be an integer of type {type_name}"):
            self.call(name, 1.0, dtype)

    @pytest.mark.parametrize("name", ["min", "max"])
    def test_python_floats_in_range(self, name):
        for value in (65504, -np.inf, 0.1):
            assert self.call(name, value, np.float16).dtype == np.float16
        with pytest.raises(DescriptorError, match=f": {name} is 70000, outside the range of FLOAT16, "):
            self.call(name, 70000, np.float16)

    @pytest.mark.parametrize("name", ["min", "max"])
    @pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32])
    def test_arrays_of_the_type_of_the_input(self, name, dtype):
        input_type = np.dtype(dtype).name.upper()
        assert self.call(name, np.zeros((), dtype), dtype).dtype == dtype
        for other in {np.int8, np.uint8, np.float16, np.float32, np.int32, np.bool} - {dtype}:
            bound_type = np.dtype(other).name.upper()
            text = f": {name} has data type {bound_type}; it must match the data type of input, {input_type}"
            with pytest.raises(DescriptorTypeError, match=text):
                self.call(name, np.zeros((), other), dtype)
        assert self.call(name, np.zeros((1, 1), dtype), dtype).dtype == dtype
        for sizes in ((2,), (3, 1), (0,)):
            with pytest.raises(DescriptorError, match=rf": {name} has shape .*, but must have 1 element"):
                self.call(name, np.zeros(sizes, dtype), dtype)


class Gradient:
    """A subclass has a clip operator and the operator that is its gradient."""

    clip: Callable
    clip_gradient: Callable

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_it_is_that_of_jax(self, dtype):
        """For every pair of bounds, and incoming gradients that include infinities and NaN."""
        x = floats(dtype)
        gradient = np.random.default_rng(2).permutation(x)
        options = {"feature_level": level(x)}
        low, high = np.float32(list(itertools.product(BOUNDS, repeat=2))).T
        low, high = (low, high) if self.clip is jquant.clip else (low.astype(dtype), high.astype(dtype))

        @jax.jit
        @jax.vmap
        def both(low, high):
            _, pull = jax.vjp(lambda x: self.clip(x, low, high, **options), x)
            return self.clip_gradient(x, gradient, low, high, **options), *pull(gradient)

        assert_equal(*both(low, high))

    def test_it_broadcasts_to_the_input(self):
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        for sizes in ((), (1, 1), (2, 1), (1, 3)):
            expected = np.where((x > 0) & (x < 4), np.full(sizes, 7, np.float32), np.float32(0))
            assert_equal(self.clip_gradient(x, np.full(sizes, 7, np.float32), 0, 4), expected)
        for sizes in ((3,), (1, 2, 3), (3, 3)):
            with pytest.raises(DescriptorError, match="input_gradient has shape"):
                self.clip_gradient(x, np.ones(sizes, np.float32), 0, 4)
        with pytest.raises(DescriptorError, match="input_gradient has shape"):
            self.clip_gradient(x[:1], x, 0, 4)
        assert self.clip_gradient(x[:0], x[:0], 0, 4).shape == (0, 3)

    def test_its_derivative(self):
        """The operator is linear in the incoming gradient, and has derivative 0 in the input and the bounds."""
        x, gradient = jnp.array([-1.0, 0.5, 3.0, jnp.nan]), jnp.array([5.0, jnp.inf, 7.0, 8.0])
        operands = x, gradient, jnp.float32(0), jnp.float32(3)
        pulled = jax.vjp(lambda *operands: self.clip_gradient(*operands), *operands)[1](jnp.full(4, 2.0))
        assert [dot.tolist() for dot in pulled] == [[0] * 4, [0, 2, 0, 2], 0, 0]
