"""Types, zero points of every form, long sums and abstract operands for the tests of the convolutions."""

import itertools

import jax
import numpy as np

from jquant.cases import samples

INTEGERS = (np.int8, np.uint8)
PAIRS = list(itertools.product(INTEGERS, INTEGERS))


def zero_points(rng, form, input_dtype, filter_dtype, filters):
    """None, one per tensor, or one per filter, for the forms 0, 1 and 2."""
    if form == 0:
        return None, None
    return samples.integers(rng, input_dtype), samples.integers(rng, filter_dtype, *([filters] if form == 2 else []))


def or_zero(*zero_points):
    return [0 if zero_point is None else zero_point for zero_point in zero_points]


# More terms than one product sums, and the sum of so many products of 255 and 255, modulo 2**32.
TERMS, WRAPPED_SUM = 140_000, 255 * 255 * 140_000 - 2 * 2**32


def long_sums(channels_last):
    """An input and two filters full of 255, with `TERMS` channels and one spatial position, and the layout's argument."""
    x, w = np.full((1, TERMS, 1, 1), 255, np.uint8), np.full((2, TERMS, 1, 1), 255, np.uint8)
    return (np.moveaxis(x, 1, -1), w, {"dimension_numbers": ("NHWC", "OIHW", "NCHW")}) if channels_last else (x, w, {})


# An input of 6 channels and 4 filters, for tests of errors.
x, w = jax.ShapeDtypeStruct((2, 6, 5, 5), np.uint8), jax.ShapeDtypeStruct((4, 6, 3, 3), np.int8)


def of(*sizes, dtype=np.int8):
    return np.zeros(sizes, dtype)
