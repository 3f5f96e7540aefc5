"""Double-float numbers of tests, and their values with the 64-bit significands of `numpy.longdouble`."""

import numpy as np

from jquant.arithmetic.double_float import DoubleFloat

FLOAT32, EXACT = np.float32, np.longdouble


def value(pair):
    """The exact value of a pair."""
    return np.asarray(pair.high).astype(EXACT) + np.asarray(pair.low).astype(EXACT)


def assert_near(actual, expected, bits):
    """Asserts that the relative error is below ``2**-bits``, and that the high part is the pair rounded to float32."""
    np.testing.assert_array_less(abs(value(actual) - expected), abs(expected) * EXACT(2) ** -bits + EXACT(2) ** -126)
    np.testing.assert_array_equal(actual.high, value(actual).astype(FLOAT32))


def random_pairs(rng, count):
    """Positive pairs, from 2**-10 to 2**10, with low parts of any size up to half an ulp."""
    high = np.exp2(rng.uniform(-10, 10, count)).astype(FLOAT32)
    low = (np.spacing(high) * rng.uniform(-0.5, 0.5, count) * np.exp2(-rng.integers(0, 20, count))).astype(FLOAT32)
    return DoubleFloat(high, low)
