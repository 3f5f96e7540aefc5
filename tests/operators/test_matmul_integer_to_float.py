"""`matmul_integer_to_float`, plain and packed: scales and biases of every form and type, and derivatives."""

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
from jquant.reference import products as reference

from .products import FLOAT32, INTEGERS, SHAPES, ZERO_POINTS, Problem, thinned


@one_in(9, ("a_dtype", "b_dtype", "dtype"), itertools.product(INTEGERS, INTEGERS, (np.float32, np.float16, jnp.bfloat16)))
def test_scales_and_biases(a_dtype, b_dtype, dtype):
    """Scales per tensor, row and column, every shape of a bias, every output type."""
    cases = itertools.product(SHAPES, ("tensor", "row"), ("tensor", "column"), (None, (1, 1), (1, 0), (0, 1), (0, 0)))
    choice = 100 * INTEGERS.index(a_dtype) + 10 * INTEGERS.index(b_dtype) + np.dtype(dtype).num
    multiply = functools.partial(jquant.matmul_integer_to_float, output_dtype=dtype, feature_level="EXTENDED")
    operands, expected = [], []
    for seed, (shape, a_form, b_form, bias_form) in thinned(cases, 4, choice):
        p = Problem(seed, a_dtype, b_dtype, shape, ZERO_POINTS[seed % len(ZERO_POINTS)])
        a_scale = p.scale(*() if a_form == "tensor" else (p.m, 1))
        b_scale = p.scale(*() if b_form == "tensor" else (1, p.n))
        a_zero_point = None if p.a_zero_point is None else p.a_column
        b_zero_point = None if p.b_zero_point is None else p.b_row
        bias = None
        if bias_form is not None:  # 1 for a size of 1, and 0 for the output's size
            sizes = [form or size for form, size in zip(bias_form, (p.m, p.n), strict=True)]
            bias = (p.rng.normal(size=(*(1,) * len(shape[0]), *sizes)) * 100).astype(FLOAT32)
        operands.append((p.a, a_scale, a_zero_point, p.b, b_scale, b_zero_point, bias))
        expected.append(reference.matmul_integer_to_float(p.a, a_scale, p.a_column, p.b, b_scale, p.b_row, bias, dtype))
    results = together([(multiply, call) for call in [*operands, *with_packed_weights(operands)]])
    for actual, desired in zip(results, expected * 2, strict=True):
        assert_equal(actual, desired)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_scales_of_16_bits(dtype):
    """They are widened and multiplied in float32, and the result is rounded once."""
    p = Problem(0, np.uint8, np.int8, ((), 33, 70, 65), ("row", "column"))
    a_scale, b_scale, bias = p.scale(33, 1).astype(dtype), p.scale(1, 65).astype(dtype), p.scale(1, 65).astype(dtype)
    expected = reference.matmul_integer_to_float(p.a, a_scale, p.a_column, p.b, b_scale, p.b_row, bias, dtype)
    arguments = (p.a, a_scale, p.a_column, p.b, b_scale, p.b_row, bias)
    assert_equal(jquant.matmul_integer_to_float(*arguments, feature_level="EXTENDED"), expected)
    assert jquant.matmul_integer_to_float(p.a, 0.5, 1, p.b, b_scale, 2, feature_level="EXTENDED").dtype == dtype


def test_special_scales():
    p = Problem(0, np.int8, np.int8, ((), 9, 20, 11), (None, None))
    for a_scale, b_scale in itertools.product(FLOAT32([0.0, np.inf, -np.inf, np.nan, -1.5, 3e38]), repeat=2):
        expected = reference.matmul_integer_to_float(p.a, a_scale, 0, p.b, b_scale, 0)
        assert_equal(jquant.matmul_integer_to_float(p.a, a_scale, None, p.b, b_scale, None), expected)


@pytest.mark.parametrize("constant", [False, True])
def test_inside_a_caller(constant):
    """Between a caller's multiplication and addition, which XLA would merge with an unprotected epilogue."""
    p = Problem(0, np.uint8, np.int8, ((), 64, 300, 257), ("tensor", "column"))
    arguments = a_scale, b_scale, bias = p.scale(), p.scale(1, p.n), p.scale(1, p.n) * 1000
    factor, addend = FLOAT32(0.1), FLOAT32(1.7)

    def caller(a_scale, b_scale, bias):
        output = jquant.matmul_integer_to_float(p.a, a_scale * factor, p.a_zero_point, p.b, b_scale, p.b_row, bias * factor)
        return output, output * factor + addend

    actual, _ = jax.jit(lambda *x: caller(*(arguments if constant else x)))(*arguments)
    scaled = a_scale * factor, p.a_zero_point, p.b, b_scale, p.b_row
    assert_equal(actual, reference.matmul_integer_to_float(p.a, *scaled, bias * factor))


@pytest.mark.parametrize(("m", "k", "n"), [(2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0), (1, 0, 1), (20, 0, 30)])
def test_empty(m, k, n):
    a, b = np.ones((m, k), np.uint8), np.ones((k, n), np.int8)
    for weights, zero_point in ((b, np.int8(3)), (jquant.pack_matrix(b, 3), None)):
        output = jquant.matmul_integer_to_float(a, 0.5, 7, weights, 0.5, zero_point, np.ones((1, n), FLOAT32))
        assert_equal(output, np.ones((m, n), FLOAT32))


def test_the_wrapped_product_is_scaled():
    k = 140_000
    a, b = np.full((1, k), 255, np.uint8), np.full((k, 2), 255, np.uint8)
    for a_zero_point, b_zero_point in ((0, 0), (7, 127)):
        expected = reference.matmul_integer(a, b, a_zero_point, b_zero_point).astype(FLOAT32) * FLOAT32(0.5)
        packed = jquant.pack_matrix(b, b_zero_point)
        assert_equal(jquant.matmul_integer_to_float(a, 0.5, a_zero_point, packed, 1.0, None), expected)


@pytest.mark.parametrize("argument", ["a_scale", "b_scale", "bias"])
def test_scales_and_bias_are_differentiable(argument):
    p = Problem(0, np.uint8, np.int8, ((), 5, 64, 7), ("tensor", "column"))
    parameters = {"a_scale": p.scale(5, 1), "b_scale": p.scale(1, 7), "bias": p.scale(1, 7)}

    def total(**changed):
        x = {**parameters, **changed}
        weights = p.b, x["b_scale"], p.b_row, x["bias"]
        return jquant.matmul_integer_to_float(p.a, x["a_scale"], p.a_zero_point, *weights).sum()

    gradient = jax.grad(lambda x: total(**{argument: x}))(parameters[argument])
    product = p.expected.astype(np.float64)
    expected = {
        "a_scale": (product * parameters["b_scale"]).sum(1, keepdims=True),
        "b_scale": (product * parameters["a_scale"]).sum(0, keepdims=True),
        "bias": np.full((1, 7), 5.0),
    }
    np.testing.assert_allclose(gradient, expected[argument], rtol=1e-5)  # a sum of floats, in any order


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_floats_are_quantized(dtype):
    """The product of floats is that of the integers that `quantize_linear` makes of them, with scales of either type."""
    p = Problem(0, np.int8, np.uint8, ((2,), 9, 70, 11), (None, "column"))
    x = (p.rng.normal(size=(2, 9, 70)) * 10.0 ** p.rng.uniform(-2, 2, (2, 9, 1))).astype(dtype)
    x[0, 0, 0], x[1, 1, 1] = np.nan, np.inf
    for a_scale, scale in itertools.product((p.scale(), p.scale(9, 1)), (p.scale(1, 11), p.scale(1, 11).astype(np.float16))):
        a_scale = a_scale.astype(scale.dtype)
        column = np.broadcast_to(a_scale.reshape(-1, 1), (9, 1)).astype(np.float32)
        integers = jquant.quantize_linear(x.astype(np.float32), column[None], output_dtype="INT8", feature_level="EXTENDED")
        for weights, zero_point in ((p.b, p.b_row), (jquant.pack_matrix(p.b, p.b_row), None)):
            multiply = functools.partial(jquant.matmul_integer_to_float, feature_level="EXTENDED")
            expected = multiply(integers, a_scale, None, weights, scale, zero_point)
            assert_equal(multiply(x, a_scale, None, weights, scale, zero_point), np.asarray(expected))


def test_the_derivative_of_floats_that_are_quantized():
    """0, as is that of rounding; that of the scale is the derivative by the scale of the product."""
    x, weights = np.float32([[0.9, 0.5], [-1.2, 3.1]]), np.int8([[1, 2, 3], [4, 5, 6]])

    def total(x, scale):
        return jquant.matmul_integer_to_float(x, scale, None, weights, 1.0, feature_level="EXTENDED").sum()

    by_x, by_scale = jax.grad(total, (0, 1))(x, np.float32(0.5))
    assert_equal(by_x, np.zeros_like(x))
    assert by_scale == (np.rint(x / 0.5) @ weights).sum()


def test_floats_have_no_zero_point():
    x, weights = np.ones((2, 3), np.float32), np.ones((3, 2), np.int8)
    with pytest.raises(jquant.DescriptorError, match="a_zero_point is given, but a holds floats"):
        jquant.matmul_integer_to_float(x, 1.0, 0, weights, 1.0, feature_level="EXTENDED")
    with pytest.raises(jquant.DescriptorTypeError, match="a has data type FLOAT32"):
        jquant.matmul_integer_to_float(x, 1.0, None, weights, 1.0)
