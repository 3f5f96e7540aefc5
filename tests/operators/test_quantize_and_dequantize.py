"""`quantize_and_dequantize`: against its formula, with a range and without, straight-through derivatives, and errors."""

import functools
import itertools

import jax
import numpy as np
import pytest
from support.sampling import one_in

import jquant
from jquant.reference import tensorflow as reference

from . import straight_through
from .straight_through import NO_AXIS, values


class TestWithARange(straight_through.StraightThrough):
    operator, formula = staticmethod(jquant.quantize_and_dequantize), staticmethod(reference.quantize_and_dequantize)
    names = "input", "input_min", "input_max"


def test_values_without_a_range():
    x = np.nan_to_num(values(200, 5), posinf=9)
    for axis, round_mode in itertools.product((None, 0, 1), ("HALF_TO_EVEN", "HALF_UP")):
        options = {"axis": axis, "round_mode": round_mode, "num_bits": 5}
        expected = reference.quantize_and_dequantize(x, **options)
        np.testing.assert_array_equal(jquant.quantize_and_dequantize(x, **options), expected)


def test_half_up():
    x = np.float32([-8, -7.5, -6.5, -0.5, np.nextafter(np.float32(0.5), 0), 0.5, 6.5, 7])
    assert jquant.quantize_and_dequantize(x, -8, 7, num_bits=4, round_mode="HALF_UP").tolist() == [-8, -7, -6, 0, 1, 1, 7, 7]
    assert jquant.quantize_and_dequantize(x, -8, 7, num_bits=4).tolist() == [-8, -8, -6, 0, 0, 0, 6, 7]


def test_both_bounds_0():
    x = np.float32([-1, 0, np.nan, np.inf])
    np.testing.assert_array_equal(jquant.quantize_and_dequantize(x, 0, 0), [0, 0, np.nan, 0])


def test_derivative_without_a_range_is_that_of_the_input():
    x, tangent = values(5, 6), np.random.default_rng(3).normal(size=(5, 6)).astype(np.float32)
    for axis in (None, 0):
        function = functools.partial(jquant.quantize_and_dequantize, axis=axis)
        np.testing.assert_array_equal(jax.jvp(function, (x,), (tangent,))[1], tangent)
        np.testing.assert_array_equal(jax.vjp(function, x)[1](tangent)[0], tangent)


def test_vmap_without_a_range():
    """Each mapped array has the range of its own values."""
    x = np.nan_to_num(values(3, 4, 5), posinf=9)
    mapped = jax.vmap(jquant.quantize_and_dequantize)(x)
    np.testing.assert_array_equal(mapped, np.stack([reference.quantize_and_dequantize(row) for row in x]))


@one_in(3, "shape", [*(((1, 2) * 4)[:rank] for rank in range(9)), (0,), (3, 0), (0,) * 8], ids=str)
def test_every_rank_without_a_range(shape):
    x = np.linspace(-2, 4, np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    actual = jax.jit(jquant.quantize_and_dequantize)(x)
    np.testing.assert_array_equal(actual, reference.quantize_and_dequantize(x))
    assert actual.shape == shape


def test_empty_axis_without_a_range():
    x = np.ones((3, 0), np.float32)
    assert jquant.quantize_and_dequantize(x, axis=1).shape == (3, 0)
    assert jquant.quantize_and_dequantize(x, axis=0).shape == (3, 0)


X = np.ones((3, 2), np.float32)
PAIR = np.ones(2, np.float32)
QDQ = "quantize_and_dequantize"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: jquant.quantize_and_dequantize(X, 1),
            f"{QDQ}: input_min and input_max must both be given, or neither, for the range of the input",
        ),
        (
            lambda: jquant.quantize_and_dequantize(X, None, 1),
            f"{QDQ}: input_min and input_max must both be given, or neither, for the range of the input",
        ),
        (
            lambda: jquant.quantize_and_dequantize(X, 1, 0),
            f"{QDQ}: input_max is 0.0, which is less than input_min, 1.0",
        ),
        (lambda: jquant.quantize_and_dequantize(X, axis=2), f"{QDQ}: axis is 2; {NO_AXIS}"),
        (lambda: jquant.quantize_and_dequantize(X, axis=-1), f"{QDQ}: axis is -1; {NO_AXIS}"),
        (
            lambda: jquant.quantize_and_dequantize(X, PAIR, PAIR),
            f"{QDQ}: input_min has shape (2,); without axis it must have 1 element",
        ),
        (
            lambda: jquant.quantize_and_dequantize(X, PAIR, 1, axis=1),
            f"{QDQ}: input_max has shape (); with axis=1 it must be (2,): input has shape (3, 2)",
        ),
        (
            lambda: jquant.quantize_and_dequantize(X, num_bits=62),
            f"{QDQ}: num_bits is 62; it must be from 1 to 61, with signed_input=True",
        ),
        (
            lambda: jquant.quantize_and_dequantize(X, num_bits=7.5, signed_input=False),
            f"{QDQ}: num_bits is the float 7.5; it must be from 1 to 62, with signed_input=False",
        ),
        (
            lambda: jquant.quantize_and_dequantize(X, round_mode="HALF_AWAY_FROM_ZERO"),
            f"{QDQ}: round_mode is HALF_AWAY_FROM_ZERO; the operator allows HALF_TO_EVEN, HALF_UP",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(jquant.DescriptorError) as raised:
        call()
    assert str(raised.value) == f"{message} (QuantizeAndDequantizeV4)"
