"""Pairs of float32, the exponential function made of them, and their sums in fixed point, against 64-bit significands."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jquant.arithmetic import double_float, exponential, fixed_point
from jquant.arithmetic.double_float import DoubleFloat
from jquant.cases import samples

FLOAT32, EXACT = np.float32, np.longdouble


def value(pair):
    return np.asarray(pair.high).astype(EXACT) + np.asarray(pair.low).astype(EXACT)


def assert_near(actual, expected, bits):
    """Relative to what is expected; the high part is the pair rounded to float32."""
    np.testing.assert_array_less(abs(value(actual) - expected), abs(expected) * EXACT(2) ** -bits + EXACT(2) ** -126)
    np.testing.assert_array_equal(actual.high, value(actual).astype(FLOAT32))


def random_pairs(rng, count):
    """Positive, from 2**-10 to 2**10, the low part of any size up to half an ulp."""
    high = np.exp2(rng.uniform(-10, 10, count)).astype(FLOAT32)
    low = (np.spacing(high) * rng.uniform(-0.5, 0.5, count) * np.exp2(-rng.integers(0, 20, count))).astype(FLOAT32)
    return DoubleFloat(high, low)


def test_sums_and_products_are_exact():
    rng = np.random.default_rng(0)
    a, b = (samples.wide_floats(rng, 500_000)[:-10] for _ in range(2))
    np.testing.assert_array_equal(value(jax.jit(double_float.two_sum)(a, b)), a.astype(EXACT) + b.astype(EXACT))
    np.testing.assert_array_equal(value(jax.jit(double_float.two_product)(a, b)), a.astype(EXACT) * b.astype(EXACT))
    large, small = np.where(abs(a) > abs(b), (a, b), (b, a))
    np.testing.assert_array_equal(value(jax.jit(double_float.fast_two_sum)(large, small)), a.astype(EXACT) + b.astype(EXACT))


@pytest.mark.parametrize(
    ("name", "formula", "count"),
    [("add", np.add, 2), ("multiply", np.multiply, 2), ("reciprocal", np.reciprocal, 1)],
)
def test_arithmetic_of_pairs(name, formula, count):
    rng = np.random.default_rng(1)
    operands = [random_pairs(rng, 500_000) for _ in range(count)]
    actual = jax.jit(getattr(double_float, name))(*operands)
    assert_near(actual, formula(*map(value, operands)), bits=45)


def test_reciprocals_of_what_has_one():
    powers = np.ldexp(FLOAT32(1), np.arange(-30, 30))
    actual = jax.jit(double_float.reciprocal)(double_float.widen(powers))
    np.testing.assert_array_equal(actual.high, 1 / powers)
    np.testing.assert_array_equal(actual.low, np.zeros_like(powers))


def test_exponential():
    """Over its whole range: dense, small numbers, and the neighbours of the multiples of half a log(2)."""
    rng = np.random.default_rng(2)
    halves = (np.arange(1, 253) * (np.log(2) / 2)).astype(FLOAT32)
    x = -np.concatenate(
        [
            np.linspace(0, 87.5, 500_000, dtype=FLOAT32),
            np.exp(rng.uniform(-40, 4.4, 500_000)).astype(FLOAT32),
            *(np.nextafter(halves, FLOAT32(side)) for side in (0, 100)),
        ]
    )
    significand, power = jax.jit(exponential.exponential)(x)
    assert_near(significand, np.exp(x.astype(EXACT)) / np.asarray(power).astype(EXACT), bits=46.5)
    assert np.all((significand.high > 0.7) & (significand.high < 1.42))


def test_exponential_of_special_values():
    x = FLOAT32([0, -0.0, -np.inf, np.nan, -1e30, -88.5, -127.9])
    significand, power = jax.jit(exponential.exponential)(x)
    np.testing.assert_array_equal(significand.high * power, FLOAT32([1, 1, 0, np.nan, 0, 0, 0]))
    assert value(significand)[0] == 1


def test_values_below_the_smallest_normal_number_are_0():
    smallest = np.finfo(FLOAT32).tiny
    x, power = FLOAT32([1, 0.99, 1.5, 0.75, 1.4, np.nan]), smallest * FLOAT32([1, 1, 1, 1, 0, 1])
    expected = FLOAT32([smallest, 0, 1.5 * smallest, 0, 0, np.nan])
    np.testing.assert_array_equal(jax.jit(exponential.scaled)(x, power), expected)
    np.testing.assert_array_equal(jax.jit(lambda: exponential.scaled(jnp.asarray(x), jnp.asarray(power)))(), expected)


@pytest.mark.parametrize("bits", [12, 15, 20])
def test_digits(bits):
    """They are those of the number, rounded to 60 bits; their sums are those of the numbers."""
    rng = np.random.default_rng(3)
    x = random_pairs(rng, 2_000)
    x = DoubleFloat(*(part * FLOAT32(2.0**-11) for part in x))
    digits = np.array(jax.jit(fixed_point.digits, static_argnums=1)(x, bits))
    assert digits.dtype == np.int32
    weights = np.ldexp(EXACT(1), -bits * np.arange(1, 60 // bits + 1))
    np.testing.assert_array_less(abs(weights @ digits - value(x)), np.ldexp(EXACT(1 + 2.0 ** (bits - 24)), -61))
    assert np.abs(digits).max() <= 2**bits
    sums = jax.jit(fixed_point.summed, static_argnums=1)(list(digits), 0)
    np.testing.assert_array_equal(np.array(sums), digits.sum(1, keepdims=True))
    sums[0] += 2**bits
    assert_near(jax.jit(fixed_point.value, static_argnums=1)(sums, bits), value(x).sum() + 1, bits=45)


@pytest.mark.parametrize("count", [1, 3, 2**11 - 1, 2**11, 2**12 + 1, 2**16 - 1, 2**16, fixed_point.LARGEST_COUNT])
def test_sums_of_the_largest_numbers(count):
    """As many as there may be, of 1, of what is just below it, and of the smallest that counts."""
    bits = fixed_point.digit_bits(count)
    to_value = jax.jit(functools.partial(fixed_point.value, bits=bits))
    ones = np.array(fixed_point.digits(double_float.widen(np.ones(1, FLOAT32)), bits), np.int64)
    for x in (DoubleFloat(FLOAT32([1]), FLOAT32([-(2.0**-25)])), DoubleFloat(FLOAT32([2.0**-40]), FLOAT32([2.0**-66]))):
        sums = ones + np.array(fixed_point.digits(x, bits), np.int64) * (count - 1)
        np.testing.assert_array_equal(sums, sums.astype(np.int32))
        expected = 1 + value(x) * (count - 1)
        assert_near(to_value(list(sums.astype(np.int32))), expected, bits=45)
    sums = ones * count
    np.testing.assert_array_equal(sums, sums.astype(np.int32))
    assert_near(to_value(list(sums.astype(np.int32))), np.full(1, EXACT(count)), bits=60)
