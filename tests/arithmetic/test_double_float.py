"""`jquant.arithmetic.double_float` against 64-bit significands."""

import jax
import numpy as np
import pytest

from jquant.arithmetic import double_float
from jquant.cases import samples

from .double_floats import EXACT, FLOAT32, assert_near, random_pairs, value


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


def test_exact_reciprocals():
    powers = np.ldexp(FLOAT32(1), np.arange(-30, 30))
    actual = jax.jit(double_float.reciprocal)(double_float.widen(powers))
    np.testing.assert_array_equal(actual.high, 1 / powers)
    np.testing.assert_array_equal(actual.low, np.zeros_like(powers))
