"""`jquant.arithmetic.fixed_point` against 64-bit significands."""

import functools

import jax
import numpy as np
import pytest

from jquant.arithmetic import double_float, fixed_point
from jquant.arithmetic.double_float import DoubleFloat

from .double_floats import EXACT, FLOAT32, assert_near, random_pairs, value


@pytest.mark.parametrize("bits", [12, 15, 20])
def test_digits(bits):
    """The digits are those of the number rounded to 60 bits, and the sums of digits give the sum of the numbers."""
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
    """Sums of as many numbers as there may be: of 1, of a number just below it, and of one near the smallest digit."""
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
