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


# The operands of calls that are refused.
x, w = jax.ShapeDtypeStruct((2, 6, 5, 5), np.uint8), jax.ShapeDtypeStruct((4, 6, 3, 3), np.int8)


def of(*sizes, dtype=np.int8):
    return np.zeros(sizes, dtype)
