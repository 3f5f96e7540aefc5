"""Operators of two operands over all 65,536 pairs of them, against the formula step by step in NumPy."""

import functools

import jax
import numpy as np

import jquant
from jquant import reference
from jquant.cases import samples

FACTOR = np.float32(0.1)
PAIRS = np.stack(np.meshgrid(np.arange(256), np.arange(256), indexing="ij")).reshape(2, -1)
TYPES = [(a, b, output) for a in (np.int8, np.uint8) for b in (np.int8, np.uint8) for output in (np.int8, np.uint8)]


def parameter_sets(operator: str, count: int) -> list[tuple]:
    """`TYPES` in turn, and (scale, zero point) for each: random, a quarter of the scales powers of two."""
    rng = np.random.default_rng(0)
    sets = []
    for index, (a_scale, b_scale, output_scale) in enumerate(samples.scales(rng, 3 * count).reshape(count, 3)):
        types = TYPES[index % len(TYPES)]
        if operator == "quantized_linear_add":
            output_scale = np.maximum(output_scale, np.maximum(a_scale, b_scale) / 4)
        else:  # a quarter with many ties
            width = np.float32(rng.choice([16, 64, 256])) if index // len(TYPES) % 4 == 0 else rng.uniform(3, 600)
            output_scale = np.float32(a_scale * b_scale * width)
        zero_points = [
            rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (), dtype, endpoint=True)[()] for dtype in types
        ]
        sets.append((types, list(zip((a_scale, b_scale, output_scale), zero_points, strict=True))))
    return sets


def applied(operator, a, b, parameters):
    of_a, of_b, of_output = parameters
    return getattr(jquant, operator)(a, *of_a, b, *of_b, *of_output)


def multiplied(parameters):
    return [(scale * FACTOR, zero_point) for scale, zero_point in parameters]


@functools.partial(jax.jit, static_argnums=0)
def traced(operator, a, b, parameters):
    return applied(operator, a, b, parameters)


@functools.partial(jax.jit, static_argnums=0)
def computed(operator, a, b, parameters):
    return applied(operator, a, b, multiplied(parameters))


def constant(operator, a, b, sets):
    return jax.jit(lambda a, b: [applied(operator, a, b, parameters) for parameters in sets])(a, b)


# The parameters are arguments of the caller's program, constants of it, or scales that it computes.
PROGRAMS = {
    "traced": lambda operator, a, b, sets: [traced(operator, a, b, parameters) for parameters in sets],
    "constant": constant,
    "computed": lambda operator, a, b, sets: [computed(operator, a, b, parameters) for parameters in sets],
}


def assert_all_pairs(operator, program, count):
    sets = parameter_sets(operator, count)
    formula = getattr(reference, operator)
    for index, types in enumerate(TYPES):
        of_these_types = [parameters for _, parameters in sets[index :: len(TYPES)]]
        a, b = (pairs.astype(dtype) for pairs, dtype in zip(PAIRS, types, strict=False))
        for ours, parameters in zip(PROGRAMS[program](operator, a, b, of_these_types), of_these_types, strict=True):
            of_a, of_b, of_output = multiplied(parameters) if program == "computed" else parameters
            expected = formula(a, *of_a, b, *of_b, *of_output, types[2])
            np.testing.assert_array_equal(ours, expected, str(parameters))


def assert_broadcast_and_defaults(operator):
    """Sizes of 1, rank 0, no zero points, and a scale that is an array of one element."""
    function, formula = getattr(jquant, operator), getattr(reference, operator)
    a, b = np.arange(-6, 6, dtype=np.int8).reshape(3, 4), np.array([[200], [3], [0]], np.uint8)
    one = np.array([[0.5]], np.float32)
    actual = function(a, one, None, b, 0.25, None, 1.0)
    assert actual.dtype == np.int8  # that of a
    np.testing.assert_array_equal(actual, formula(a, one, 0, b, np.float32(0.25), 0, one * 2, 0, np.int8))
    actual = function(np.uint8(9), 1.0, 0, a, 1.0, 0, 1.0, np.int8(5))
    assert actual.dtype == np.int8  # that of the array zero point
    np.testing.assert_array_equal(actual, formula(np.uint8(9), one * 2, 0, a, one * 2, 0, one * 2, 5, np.int8))
    assert function(a, 1.0, 0, a, 1.0, 0, 1.0, 3, output_dtype="UINT8").dtype == np.uint8
    assert function(a[:0], 1.0, 0, a[:1], 1.0, 0, 1.0).shape == (0, 4)


def assert_the_zero_point_decides_no_tie(operator, b):
    """Rounded before it is added: 0.5 + 1 is 1 and 1.5 + 1 is 3; added before rounding it would be 2 and 2."""
    a, b = np.array([1, 3, -1], np.int8), np.full(3, b, np.int8)
    actual = getattr(jquant, operator)(a, 0.5, 0, b, 1.0, 0, 1.0, 1)
    np.testing.assert_array_equal(actual, np.array([1, 3, 1], np.int8))
