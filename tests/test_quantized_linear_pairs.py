"""`quantized_linear_add` and `_multiply` over all 65,536 pairs of operands, against the formula step by step in NumPy."""

import functools

import jax
import numpy as np
import pytest
import samples

import jquant
from jquant import DescriptorError, DescriptorTypeError, reference

FACTOR = np.float32(0.1)
PAIRS = np.stack(np.meshgrid(np.arange(256), np.arange(256), indexing="ij")).reshape(2, -1)
TYPES = [(a, b, output) for a in (np.int8, np.uint8) for b in (np.int8, np.uint8) for output in (np.int8, np.uint8)]
OPERATORS = ("quantized_linear_add", "quantized_linear_multiply")
operators = pytest.mark.parametrize("operator", OPERATORS)


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


@pytest.mark.parametrize(
    ("operator", "program", "count"),
    [
        ("quantized_linear_add", "traced", 500),
        ("quantized_linear_add", "constant", 100),
        ("quantized_linear_add", "computed", 500),
        ("quantized_linear_multiply", "traced", 1000),
        ("quantized_linear_multiply", "constant", 48),
        ("quantized_linear_multiply", "computed", 1000),
    ],
)
def test_all_pairs(operator, program, count):
    sets = parameter_sets(operator, count)
    formula = getattr(reference, operator)
    for index, types in enumerate(TYPES):
        of_these_types = [parameters for _, parameters in sets[index :: len(TYPES)]]
        a, b = (pairs.astype(dtype) for pairs, dtype in zip(PAIRS, types, strict=False))
        for ours, parameters in zip(PROGRAMS[program](operator, a, b, of_these_types), of_these_types, strict=True):
            of_a, of_b, of_output = multiplied(parameters) if program == "computed" else parameters
            expected = formula(a, *of_a, b, *of_b, *of_output, types[2])
            np.testing.assert_array_equal(ours, expected, str(parameters))


def test_a_constant_factor():
    """One operand is a scalar of the program: XLA would multiply it with the scales first."""
    sets = [parameters for types, parameters in parameter_sets("quantized_linear_multiply", 256) if types == TYPES[-1]]
    a, factors = np.arange(256).astype(np.uint8), samples.integers(np.random.default_rng(0), np.uint8, len(sets))
    calls = list(zip(factors, sets, strict=True))
    program = jax.jit(lambda a: [applied("quantized_linear_multiply", a, *call) for call in calls])
    for ours, (factor, (of_a, of_b, of_output)) in zip(program(a), calls, strict=True):
        expected = reference.quantized_linear_multiply(a, *of_a, factor, *of_b, *of_output, np.uint8)
        np.testing.assert_array_equal(ours, expected)


@operators
def test_broadcast_and_defaults(operator):
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
def test_scales_that_the_document_leaves_undefined_in_a_sum(scales, expected):
    a = np.array([0, 5, -5], np.int8)
    actual = jquant.quantized_linear_add(a, scales[0], 0, a, scales[1], 0, scales[2], 3)
    np.testing.assert_array_equal(actual, np.array(expected, np.int8))


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        ((1.0, 1.0, 0.0), [0, 127, 127]),  # 0/0, and infinities
        ((0.0, 1.0, 1.0), [3, 3, 3]),
        ((0.0, np.inf, 1.0), [0, 0, 0]),  # the scales are multiplied first: 0 * inf is NaN
        ((np.inf, 1.0, 1.0), [0, 127, 127]),
        ((3e38, 3e38, 1.0), [0, 127, 127]),  # and may overflow: 0 * inf
        ((1.0, 1.0, np.inf), [3, 3, 3]),
        ((np.nan, 1.0, 1.0), [0, 0, 0]),
        ((-1.0, 1.0, 1.0), [3, -22, -22]),
    ],
)
def test_scales_that_the_document_leaves_undefined_in_a_product(scales, expected):
    a = np.array([0, 5, -5], np.int8)
    actual = jquant.quantized_linear_multiply(a, scales[0], 0, a, scales[1], 0, scales[2], 3)
    np.testing.assert_array_equal(actual, np.array(expected, np.int8))


@pytest.mark.parametrize(("operator", "b"), list(zip(OPERATORS, (0, 1), strict=True)))
def test_the_zero_point_decides_no_tie(operator, b):
    """Rounded before it is added: 0.5 + 1 is 1 and 1.5 + 1 is 3; added before rounding it would be 2 and 2."""
    a, b = np.array([1, 3, -1], np.int8), np.full(3, b, np.int8)
    actual = getattr(jquant, operator)(a, 0.5, 0, b, 1.0, 0, 1.0, 1)
    np.testing.assert_array_equal(actual, np.array([1, 3, 1], np.int8))


OPERANDS = ("A", "A_scale", "A_zero_point", "B", "B_scale", "B_zero_point", "C_scale", "C_zero_point")


@pytest.mark.parametrize("name", OPERANDS)
class TestOperandsOfMultiply:
    """Each on both sides of what is allowed."""

    def call(self, name, value):
        valid = [np.ones((2, 3), np.uint8), 1.0, 3, np.ones((2, 3), np.uint8), 1.0, 3, 1.0, 3]
        given = dict(zip(OPERANDS, valid, strict=True)) | {name: value}
        return jquant.quantized_linear_multiply(*given.values())

    def test_data_types(self, name):
        shape = (2, 3) if name in ("A", "B") else ()
        allowed = (
            ["float32"] if "scale" in name else ["uint8"] if name in ("A_zero_point", "B_zero_point") else ["int8", "uint8"]
        )
        for dtype in ("int8", "uint8", "int16", "int32", "float16", "float32"):
            if dtype in allowed:
                zeros = np.zeros(shape, dtype)
                assert self.call(name, zeros).shape == (2, 3)
            else:
                text = rf"QLinearMul: (C_zero_point|{name}|C) has data type {dtype.upper()}[;,] "
                with pytest.raises(DescriptorTypeError, match=text):
                    self.call(name, np.zeros(shape, dtype))

    def test_sizes(self, name):
        if name in ("A", "B"):
            for sizes in ((), (1, 3), (2, 1), (1, 1), (2, 3), (3,), (1,)):
                assert self.call(name, np.ones(sizes, np.uint8)).shape == (2, 3)
            assert self.call(name, np.ones((5, 1, 3), np.uint8)).shape == (5, 2, 3)
            text = "the dimension counts must be the same, and each size 1 or that of the output"
            for sizes in ((2,), (3, 3), (2, 2)):
                with pytest.raises(DescriptorError, match=text):
                    self.call(name, np.ones(sizes, np.uint8))
        else:
            dtype = np.float32 if "scale" in name else np.uint8
            for sizes in ((1,), (1, 1), (1, 1, 1)):
                assert self.call(name, np.ones(sizes, dtype)).shape == (2, 3)
            for sizes in ((2, 3), (1, 3), (0,)):
                with pytest.raises(DescriptorError, match=rf"QLinearMul: {name} has sizes .*, but must have 1 element"):
                    self.call(name, np.ones(sizes, dtype))

    def test_python_scalars(self, name):
        if name in ("A", "B"):
            with pytest.raises(DescriptorTypeError, match=f"QLinearMul: {name} is the Python scalar 1; it must be an array"):
                self.call(name, 1)
        else:
            beyond = "1e39" if "scale" in name else "256"
            with pytest.raises(DescriptorError, match=f"QLinearMul: {name} is {beyond.replace('e', r'e.')}, outside of"):
                self.call(name, float(beyond) if "scale" in name else int(beyond))
        if "zero_point" in name:
            assert self.call(name, None).shape == (2, 3)
        else:
            with pytest.raises(DescriptorTypeError, match=f"QLinearMul: {name} must be an array or a Python scalar"):
                self.call(name, None)
