"""`fake_quantize`: against its formula, its nudged range, straight-through derivatives, and errors."""

import functools

import jax
import numpy as np
import pytest

import jquant
from jquant.reference import tensorflow as reference

from . import straight_through
from .straight_through import NO_AXIS


class TestStraightThrough(straight_through.StraightThrough):
    operator, formula = staticmethod(jquant.fake_quantize), staticmethod(reference.fake_quantize)
    names = "input", "min", "max"


def test_both_bounds_0():
    x = np.float32([-1, 0, np.nan, np.inf])
    value, pull_back = jax.vjp(jquant.fake_quantize, x, np.float32(0), np.float32(0))
    np.testing.assert_array_equal(value, 0)
    np.testing.assert_array_equal(pull_back(np.arange(4, dtype=np.float32))[0], np.arange(4))


def test_nudged_range():
    """0 lies half a step above an integer, so the range [-0.5, 2.5] becomes [-1, 2], which includes its bounds."""
    x = np.float32([-9, np.nextafter(np.float32(-1), -9), -1, -0.5, 0, 1.5, 2, np.nextafter(np.float32(2), 9), 9])
    value, pull_back = jax.vjp(functools.partial(jquant.fake_quantize, num_bits=2), x, np.float32(-0.5), np.float32(2.5))
    np.testing.assert_array_equal(value, [-1, -1, -1, 0, 0, 2, 2, 2, 2])
    for_input, for_low, for_high = pull_back(np.ones_like(x))
    np.testing.assert_array_equal(for_input, [0, 0, 1, 1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal([for_low, for_high], [2, 2])


X = np.ones((3, 2), np.float32)
PAIR = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jquant.fake_quantize(X, 1, 0), "fake_quantize: max is 0.0, which is less than min, 1.0"),
        (lambda: jquant.fake_quantize(X, PAIR, PAIR, axis=2), f"fake_quantize: axis is 2; {NO_AXIS}"),
        (lambda: jquant.fake_quantize(X, PAIR, PAIR, axis=-1), f"fake_quantize: axis is -1; {NO_AXIS}"),
        (
            lambda: jquant.fake_quantize(X, PAIR, 1),
            "fake_quantize: min has shape (2,); without axis it must have 1 element",
        ),
        (
            lambda: jquant.fake_quantize(X, 0, PAIR, axis=0),
            "fake_quantize: min has shape (); with axis=0 it must be (3,): input has shape (3, 2)",
        ),
        (
            lambda: jquant.fake_quantize(X, 0, 1, num_bits=1),
            "fake_quantize: num_bits is 1; it must be from 2 to 16",
        ),
        (
            lambda: jquant.fake_quantize(X, 0, 1, num_bits="8"),
            "fake_quantize: num_bits is the str '8'; it must be from 2 to 16",
        ),
        (
            lambda: jquant.fake_quantize(X, 0, 1, num_bits=True),
            "fake_quantize: num_bits is the bool True; it must be from 2 to 16",
        ),
        (
            lambda: jquant.fake_quantize(X, 0, 1, narrow_range="no"),
            "fake_quantize: narrow_range is the str 'no'; it must be True or False",
        ),
        (
            lambda: jquant.fake_quantize(X, 0, 1, num_bits=17),
            "fake_quantize: num_bits is 17; it must be from 2 to 16",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(jquant.DescriptorError) as raised:
        call()
    assert str(raised.value) == f"{message} (FakeQuantWithMinMaxVars)"
