"""`jquant.arithmetic.exponential` against 64-bit significands."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exponential

from .double_floats import EXACT, FLOAT32, assert_near, value


def test_exponential():
    """Over its whole range: equally spaced numbers, small ones, and the neighbours of the multiples of half a log(2)."""
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
