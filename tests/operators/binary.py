"""Checks of the operators of two quantized tensors: all 65,536 pairs of values, broadcasting, ties."""

import functools

import jax
import numpy as np

import jquant
from jquant.cases import samples
from jquant.reference import elementwise as reference

FACTOR = np.float32(0.1)
PAIRS = np.stack(np.meshgrid(np.arange(256), np.arange(256), indexing="ij")).reshape(2, -1)
TYPES = [(a, b, output) for a in (np.int8, np.uint8) for b in (np.int8, np.uint8) for output in (np.int8, np.uint8)]


def parameter_sets(operator: str, count: int) -> list[tuple]:
    """Triples from `TYPES` in turn, with random scales and zero points; a quarter of the scales are powers of two."""
    rng = np.random.default_rng(0)
    sets = []
    for index, (a_scale, b_scale, output_scale) in enumerate(samples.scales(rng, 3 * count).reshape(count, 3)):
        types = TYPES[index % len(TYPES)]
        if operator == "quantized_linear_add":
            output_scale = np.maximum(output_scale, np.maximum(a_scale, b_scale) / 4)
        else:  # a quarter of the sets gives many ties
            width = np.float32(rng.choice([16, 64, 256])) if index // len(TYPES) % 4 == 0 else rng.uniform(3, 600)
            output_scale = np.float32(a_scale * b_scale * width)
        zero_points = [
            rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (), dtype, endpoint=True)[()] for dtype in types
        ]
        sets.append((types, list(zip((a_scale, b_scale, output_scale), zero_points, strict=True))))
    return sets


def applied(operator, a, b, parameters):
    a_parameters, b_parameters, output_parameters = parameters
    return getattr(jquant, operator)(a, *a_parameters, b, *b_parameters, *output_parameters)


def multiplied(parameters):
    """The parameters with scales times `FACTOR`."""
    return [(scale * FACTOR, zero_point) for scale, zero_point in parameters]


@functools.partial(jax.jit, static_argnums=0)
def traced(operator, a, b, parameters):
    return applied(operator, a, b, parameters)


@functools.partial(jax.jit, static_argnums=0)
def computed(operator, a, b, parameters):
    return applied(operator, a, b, multiplied(parameters))


def constant(operator, a, b, sets):
    return jax.jit(lambda a, b: [applied(operator, a, b, parameters) for parameters in sets])(a, b)


# The parameters are arguments of the caller's program, constants in it, or scales that it computes.
PROGRAMS = {
    "traced": lambda operator, a, b, sets: [traced(operator, a, b, parameters) for parameters in sets],
    "constant": constant,
    "computed": lambda operator, a, b, sets: [computed(operator, a, b, parameters) for parameters in sets],
}


def assert_all_pairs(operator, program, count):
    sets = parameter_sets(operator, count)
    formula = getattr(reference, operator)
    for index, types in enumerate(TYPES):
        type_sets = [parameters for _, parameters in sets[index :: len(TYPES)]]
        a, b = (pairs.astype(dtype) for pairs, dtype in zip(PAIRS, types, strict=False))
        for actual, parameters in zip(PROGRAMS[program](operator, a, b, type_sets), type_sets, strict=True):
            a_parameters, b_parameters, output_parameters = multiplied(parameters) if program == "computed" else parameters
            expected = formula(a, *a_parameters, b, *b_parameters, *output_parameters, types[2])
            np.testing.assert_array_equal(actual, expected, str(parameters))


def assert_broadcast_and_defaults(operator):
    """Dimensions of size 1, rank 0, no zero points, and a scale in an array of one element."""
    function, formula = getattr(jquant, operator), getattr(reference, operator)
    a, b = np.arange(-6, 6, dtype=np.int8).reshape(3, 4), np.array([[200], [3], [0]], np.uint8)
    half, one = np.array([[0.5]], np.float32), np.array([[1]], np.float32)
    actual = function(a, half, None, b, 0.25, None, 1.0)
    assert actual.dtype == np.int8  # the dtype of a
    np.testing.assert_array_equal(actual, formula(a, half, 0, b, np.float32(0.25), 0, one, 0, np.int8))
    actual = function(np.uint8(9), 1.0, 0, a, 1.0, 0, 1.0, np.int8(5))
    assert actual.dtype == np.int8  # the dtype of the output's zero point
    np.testing.assert_array_equal(actual, formula(np.uint8(9), one, 0, a, one, 0, one, 5, np.int8))
    assert function(a, 1.0, 0, a, 1.0, 0, 1.0, 3, output_dtype="UINT8").dtype == np.uint8
    assert function(a[:0], 1.0, 0, a[:1], 1.0, 0, 1.0).shape == (0, 4)


def assert_the_zero_point_decides_no_tie(operator, b):
    """It is added after rounding: 0.5 gives 0 + 1 and 1.5 gives 2 + 1; rounding 1.5 and 2.5 would give 2 and 2."""
    a, b = np.array([1, 3, -1], np.int8), np.full(3, b, np.int8)
    actual = getattr(jquant, operator)(a, 0.5, 0, b, 1.0, 0, 1.0, 1)
    np.testing.assert_array_equal(actual, np.array([1, 3, 1], np.int8))
