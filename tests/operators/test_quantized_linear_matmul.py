"""`quantized_linear_matmul`, plain and packed: scales and zero points of every form and type, ties, special scales."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.programs import together, with_packed_weights
from support.sampling import one_in

import jquant
from jquant.cases import samples
from jquant.reference import products as reference
from jquant.reference.rounding import saturate

from .products import FLOAT32, INTEGERS, SHAPES, ZERO_POINTS, Problem, thinned


@one_in(5, ("a_dtype", "b_dtype", "dtype"), itertools.product(INTEGERS, repeat=3))
def test_scales_and_zero_points(a_dtype, b_dtype, dtype):
    """Scales per tensor, row and column, and outputs with and without saturation."""
    vectors = itertools.product(("tensor", "row"), ("tensor", "column"), ("tensor", "row"), (None, "tensor", "row"))
    choice = 100 * INTEGERS.index(a_dtype) + 10 * INTEGERS.index(b_dtype) + INTEGERS.index(dtype)
    cases = itertools.product(SHAPES, vectors)
    multiply = functools.partial(jquant.quantized_linear_matmul, output_dtype=dtype)
    operands, expected = [], []
    for seed, (shape, (a_form, b_form, output_form, zero_point_form)) in thinned(cases, 4, choice):
        p = Problem(seed, a_dtype, b_dtype, shape, ZERO_POINTS[seed % len(ZERO_POINTS)])
        a_scale = p.scale(*() if a_form == "tensor" else (p.m, 1))
        b_scale = p.scale(*() if b_form == "tensor" else (1, p.n))
        spread = max(1, p.expected.std()) / (50 if seed % 3 else 500)
        output_scale = p.scale(*() if output_form == "tensor" else (p.m, 1)) * FLOAT32(spread / 20)
        output_zero_point = None
        if zero_point_form is not None:
            output_zero_point = samples.integers(p.rng, dtype, *() if zero_point_form == "tensor" else (p.m, 1))
        expected.append(
            reference.quantized_linear_matmul(
                *(p.a, a_scale, p.a_column, p.b, b_scale, p.b_row),
                *(output_scale, 0 if output_zero_point is None else output_zero_point, dtype),
            )
        )
        a_zero_point = None if p.a_zero_point is None else p.a_column
        b_zero_point = None if p.b_zero_point is None else p.b_row
        operands.append((p.a, a_scale, a_zero_point, p.b, b_scale, b_zero_point, output_scale, output_zero_point))
    results = together([(multiply, call) for call in [*operands, *with_packed_weights(operands)]])
    for actual, desired in zip(results, expected * 2, strict=True):
        assert_equal(actual, desired)


def test_ties_are_rounded_to_even_before_the_zero_point():
    a = np.arange(-128, 128, dtype=np.int8)[:, None]
    for zero_point in (0, 1, 2, -3):
        expected = saturate(np.rint(a / 2) + zero_point, np.int8)
        assert_equal(jquant.quantized_linear_matmul(a, 0.5, None, np.int8([[1]]), 1.0, None, 1.0, zero_point), expected)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_scales_of_16_bits(dtype):
    """They are widened, and their product and quotient rounded to float32; ONNX's reference rounds them to 16 bits."""
    p = Problem(1, np.uint8, np.int8, ((), 17, 20, 33), ("row", "column"))
    a_scale, output_scale = (p.rng.uniform(0.1, 1, (17, 1)).astype(dtype) for _ in range(2))
    b_scale = p.rng.uniform(0.1, 1, (1, 33)).astype(dtype)
    expected = reference.quantized_linear_matmul(p.a, a_scale, p.a_column, p.b, b_scale, p.b_row, output_scale, 7, np.uint8)
    operands = p.a, a_scale, p.a_column, p.b, b_scale, p.b_row, output_scale, 7
    assert_equal(jquant.quantized_linear_matmul(*operands, feature_level="EXTENDED"), expected)


def test_special_scales():
    """Infinities saturate, and NaN becomes 0."""
    p = Problem(0, np.int8, np.int8, ((), 9, 20, 11), (None, None))
    for a_scale, output_scale in itertools.product(FLOAT32([0.0, np.inf, -np.inf, np.nan, -1.5, 3e38]), repeat=2):
        expected = reference.quantized_linear_matmul(p.a, a_scale, 0, p.b, 0.5, 0, output_scale, 3, np.uint8)
        actual = jquant.quantized_linear_matmul(p.a, a_scale, None, p.b, 0.5, None, output_scale, np.uint8(3))
        assert_equal(actual, expected)


@pytest.mark.parametrize("constant", [False, True])
def test_inside_a_caller(constant):
    """After a caller's multiplication, which XLA would merge with an unprotected epilogue."""
    p = Problem(0, np.uint8, np.int8, ((), 64, 300, 257), ("tensor", "column"))
    arguments = a_scale, b_scale = p.scale(), p.scale(1, p.n)
    factor = FLOAT32(0.1)

    def caller(a_scale, b_scale):
        return jquant.quantized_linear_matmul(p.a, a_scale * factor, p.a_zero_point, p.b, b_scale, p.b_row, 0.01, 7)

    actual = jax.jit(lambda *x: caller(*(arguments if constant else x)))(*arguments)
    scaled = a_scale * factor, p.a_zero_point, p.b, b_scale, p.b_row
    assert_equal(actual, reference.quantized_linear_matmul(p.a, *scaled, FLOAT32(0.01), 7, np.uint8))


@pytest.mark.parametrize(("m", "k", "n"), [(2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0), (1, 0, 1), (20, 0, 30)])
def test_empty(m, k, n):
    a, b = np.ones((m, k), np.uint8), np.ones((k, n), np.int8)
    for weights, zero_point in ((b, np.int8(3)), (jquant.pack_matrix(b, 3), None)):
        output = jquant.quantized_linear_matmul(a, 0.5, 7, weights, 0.5, zero_point, 0.5, 9)
        assert_equal(output, np.full((m, n), 9, np.uint8))


def test_near_ties():
    """Multipliers for which products are ties or next to ties."""
    rng = np.random.default_rng(0)
    a, b = samples.integers(rng, np.int8, 200, 3), samples.integers(rng, np.int8, 3, 200)
    for a_scale, output_scale in samples.scales(rng, 200).reshape(-1, 2):
        expected = reference.quantized_linear_matmul(a, a_scale, 0, b, FLOAT32(0.5), 0, output_scale, 3, np.int8)
        assert_equal(jquant.quantized_linear_matmul(a, a_scale, None, b, 0.5, None, output_scale, 3), expected)
