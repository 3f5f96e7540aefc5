"""What the tests of the two convolutions share: types, zero points of every form, and the operands of refused calls."""

import itertools

import jax
import numpy as np

from jquant.cases import samples

INTEGERS = (np.int8, np.uint8)
PAIRS = list(itertools.product(INTEGERS, INTEGERS))


def zero_points(rng, form, input_dtype, filter_dtype, filters):
    """None, one for the tensor, or one for each filter."""
    if form == 0:
        return None, None
    return samples.integers(rng, input_dtype), samples.integers(rng, filter_dtype, *([filters] if form == 2 else []))


def or_zero(*zero_points):
    return [0 if zero_point is None else zero_point for zero_point in zero_points]


# How many terms are more than are multiplied at once, and the sum of as many products of 255 and 255, modulo 2**32.
TERMS, WRAPPED_SUM = 140_000, 255 * 255 * 140_000 - 2 * 2**32


def of_long_sums(channels_last):
    """An input and two filters of 255, of one element and `TERMS` channels, and their layout."""
    x, w = np.full((1, TERMS, 1, 1), 255, np.uint8), np.full((2, TERMS, 1, 1), 255, np.uint8)
    return (np.moveaxis(x, 1, -1), w, {"dimension_numbers": ("NHWC", "OIHW", "NCHW")}) if channels_last else (x, w, {})


# The operands of calls that are refused.
x, w = jax.ShapeDtypeStruct((2, 6, 5, 5), np.uint8), jax.ShapeDtypeStruct((4, 6, 3, 3), np.int8)


def of(*sizes, dtype=np.int8):
    return np.zeros(sizes, dtype)
