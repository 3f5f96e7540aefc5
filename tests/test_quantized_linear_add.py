"""`quantized_linear_add` over all 65,536 pairs of operands, against the formula computed step by step in NumPy."""

import jax
import numpy as np
import pytest
import samples

import jquant
from jquant import reference

FACTOR = np.float32(0.1)
PAIRS = np.stack(np.meshgrid(np.arange(256), np.arange(256), indexing="ij")).reshape(2, -1)
TYPES = [(a, b, output) for a in (np.int8, np.uint8) for b in (np.int8, np.uint8) for output in (np.int8, np.uint8)]


def parameter_sets(count: int) -> list[tuple]:
    """`TYPES` in turn, and (scale, zero point) for each: random, a quarter of the scales powers of two."""
    rng = np.random.default_rng(0)
    sets = []
    for index, (a_scale, b_scale, output_scale) in enumerate(samples.scales(rng, 3 * count).reshape(count, 3)):
        types = TYPES[index % len(TYPES)]
        output_scale = np.maximum(output_scale, np.maximum(a_scale, b_scale) / 4)
        zero_points = [
            rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (), dtype, endpoint=True)[()] for dtype in types
        ]
        sets.append((types, list(zip((a_scale, b_scale, output_scale), zero_points, strict=True))))
    return sets


def add(a, b, parameters):
    of_a, of_b, of_output = parameters
    return jquant.quantized_linear_add(a, *of_a, b, *of_b, *of_output)


def multiplied(parameters):
    return [(scale * FACTOR, zero_point) for scale, zero_point in parameters]


@jax.jit
def traced(a, b, parameters):
    return add(a, b, parameters)


@jax.jit
def computed(a, b, parameters):
    return add(a, b, multiplied(parameters))


# The parameters are arguments of the caller's program, constants of it, or scales that it computes.
PROGRAMS = {
    "traced": lambda a, b, sets: [traced(a, b, parameters) for parameters in sets],
    "constant": lambda a, b, sets: jax.jit(lambda a, b: [add(a, b, parameters) for parameters in sets])(a, b),
    "computed": lambda a, b, sets: [computed(a, b, parameters) for parameters in sets],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_all_pairs(program):
    sets = parameter_sets(500)
    for index, types in enumerate(TYPES):
        of_these_types = [parameters for _, parameters in sets[index :: len(TYPES)]]
        a, b = (pairs.astype(dtype) for pairs, dtype in zip(PAIRS, types, strict=False))
        for ours, parameters in zip(PROGRAMS[program](a, b, of_these_types), of_these_types, strict=True):
            of_a, of_b, of_output = multiplied(parameters) if program == "computed" else parameters
            expected = reference.quantized_linear_add(a, *of_a, b, *of_b, *of_output, types[2])
            np.testing.assert_array_equal(ours, expected, str(parameters))


def test_broadcast_and_defaults():
    """Sizes of 1, rank 0, no zero points, and a scale that is an array of one element."""
    a, b = np.arange(-6, 6, dtype=np.int8).reshape(3, 4), np.array([[200], [3], [0]], np.uint8)
    one = np.array([[0.5]], np.float32)
    actual = jquant.quantized_linear_add(a, one, None, b, 0.25, None, 1.0)
    assert actual.dtype == np.int8  # that of a
    np.testing.assert_array_equal(
        actual, reference.quantized_linear_add(a, one, 0, b, np.float32(0.25), 0, one * 2, 0, np.int8)
    )
    actual = jquant.quantized_linear_add(np.uint8(9), 1.0, 0, a, 1.0, 0, 1.0, np.int8(5))
    assert actual.dtype == np.int8  # that of the array zero point
    np.testing.assert_array_equal(actual, 9 + a + 5)
    assert jquant.quantized_linear_add(a, 1.0, 0, a, 1.0, 0, 1.0, 3, output_dtype="UINT8").dtype == np.uint8


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        ((1.0, 1.0, 0.0), [0, 127, -128]),  # 0/0, and infinities
        ((0.0, 0.0, 1.0), [3, 3, 3]),
        ((np.inf, 1.0, 1.0), [0, 127, -128]),  # 0 * inf is NaN
        ((np.inf, -np.inf, 1.0), [0, 0, 0]),
        ((1.0, 1.0, np.inf), [3, 3, 3]),
        ((np.nan, 1.0, 1.0), [0, 0, 0]),
        ((-1.0, 1.0, 1.0), [3, 3, 3]),
        ((-1.0, -1.0, 1.0), [3, -7, 13]),
    ],
)
def test_scales_that_the_document_leaves_undefined(scales, expected):
    a = np.array([0, 5, -5], np.int8)
    actual = jquant.quantized_linear_add(a, scales[0], 0, a, scales[1], 0, scales[2], 3)
    np.testing.assert_array_equal(actual, np.array(expected, np.int8))


def test_the_zero_point_decides_no_tie():
    """Rounded before it is added: 0.5 + 1 is 1 and 1.5 + 1 is 3; added before rounding it would be 2 and 2."""
    a, b = np.array([1, 3, -1], np.int8), np.zeros(3, np.int8)
    actual = jquant.quantized_linear_add(a, 0.5, 0, b, 0.5, 0, 1.0, 1)
    np.testing.assert_array_equal(actual, np.array([1, 3, 1], np.int8))
