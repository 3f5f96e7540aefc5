"""`quantized_linear_leaky_relu`: all 256 values against the formula, special values, and errors."""

import functools

import jax
import numpy as np
import pytest

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.reference import elementwise as reference

from .elementwise import COUNT, FACTOR, INTEGERS, columns, parameters, values


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer(dtype):
    """With parameters that are arguments of the caller's program, and scales that it computes."""
    rng = np.random.default_rng(0)
    x, operands = values(dtype), parameters(rng, dtype, dtype)
    alpha = rng.choice(np.float32([0.01, 0.1, 0.25, 0.3, 0, 1.7, -0.5]), COUNT)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, 0, 0, 0, 0, 0))
    def rectified(x, x_scale, x_zero_point, output_scale, output_zero_point, alpha):
        def call(x_scale, alpha):
            return jquant.quantized_linear_leaky_relu(x, x_scale, x_zero_point, output_scale, output_zero_point, alpha=alpha)

        return call(x_scale, alpha), call(x_scale * FACTOR, alpha * FACTOR)

    def formula(x_scale, x_zero_point, output_scale, output_zero_point, alpha):
        return reference.quantized_linear_leaky_relu(x, x_scale, x_zero_point, output_scale, output_zero_point, alpha, dtype)

    x_scale, *others, alphas = columns([*operands, alpha])
    traced, computed = rectified(x, *operands, alpha)
    np.testing.assert_array_equal(traced, formula(x_scale, *others, alphas), strict=True)
    np.testing.assert_array_equal(computed, formula(x_scale * FACTOR, *others, alphas * FACTOR), strict=True)


def test_constants():
    rng = np.random.default_rng(1)
    x = values(np.int8)
    sets = [(*(operand[index] for operand in parameters(rng, np.int8, np.int8)), np.float32(0.3)) for index in range(24)]
    formula = functools.partial(reference.quantized_linear_leaky_relu, dtype=np.int8)
    program = jax.jit(lambda x: [jquant.quantized_linear_leaky_relu(x, *four, alpha=alpha) for *four, alpha in sets])
    for actual, operands in zip(program(x), sets, strict=True):
        np.testing.assert_array_equal(actual, formula(x, *operands), str(operands), strict=True)


@pytest.mark.parametrize(
    ("scale", "output_scale", "alpha", "expected"),
    [
        (1.0, 1.0, 0.01, [3, 8, 3]),  # alpha * 5 rounds to 0
        (1.0, 0.0, 0.01, [0, 127, -128]),  # 0/0, and infinities
        (0.0, 1.0, 0.01, [3, 3, 3]),
        (np.inf, 1.0, 0.01, [0, 127, -128]),  # 0 * inf is NaN
        (np.inf, 1.0, 0.0, [0, 127, 0]),
        (np.nan, 1.0, 0.01, [0, 0, 0]),
        (1.0, 1.0, np.nan, [3, 8, 0]),
        (1.0, 1.0, np.inf, [3, 8, -128]),
        (1.0, 1.0, -2, [3, 8, 13]),
        (-1.0, 1.0, 2, [3, -7, 8]),
    ],
)
def test_special_values(scale, output_scale, alpha, expected):
    x = np.array([0, 5, -5], np.int8)
    actual = jquant.quantized_linear_leaky_relu(x, scale, 0, output_scale, 3, alpha=alpha)
    np.testing.assert_array_equal(actual, np.array(expected, np.int8), strict=True)


def test_defaults():
    x = values(np.int8)
    actual = jquant.quantized_linear_leaky_relu(x, 1.0, None, 0.01)
    expected = reference.quantized_linear_leaky_relu(x, np.float32(1), 0, np.float32(0.01), 0, 0.01, np.int8)
    np.testing.assert_array_equal(actual, expected, strict=True)
    assert jquant.quantized_linear_leaky_relu(x[:0], 1.0, None, 0.01).shape == (0,)


X = np.ones((2, 3), np.int8)


@pytest.mark.parametrize(
    ("operands", "error", "text"),
    [
        ((1, 1.0, 0, 1.0, 0), DescriptorTypeError, "x is the Python scalar 1; it must be an array"),
        (
            (np.ones(2, np.int16), 1.0, None, 1.0, 0),
            DescriptorTypeError,
            "x has data type INT16; the operator allows INT8,",
        ),
        (
            (X, np.float16(1), 0, 1.0, 0),
            DescriptorTypeError,
            "x_scale has data type FLOAT16; the operator allows FLOAT32",
        ),
        (
            (X, np.ones((1, 3), np.float32), 0, 1.0, 0),
            DescriptorError,
            "x_scale has rank 2 (shape (1, 3)); the operator allows 0 to 1",
        ),
        (
            (X, 1.0, np.uint8(0), 1.0, 0),
            DescriptorTypeError,
            "x_zero_point has data type UINT8; it must match the data type of x, ",
        ),
        ((X, 1.0, 128, 1.0, 0), DescriptorError, "x_zero_point is 128, outside the range of INT8, [-128, 127]"),
        ((X, 1.0, 0, 1e39, 0), DescriptorError, "output_scale is 1e+39, outside the range of FLOAT32"),
        (
            (X, 1.0, 0, 1.0, np.int16(0)),
            DescriptorTypeError,
            "output_zero_point has data type INT16; it must match the data type of x, ",
        ),
        ((X, 1.0, 0, 1.0, np.zeros(2, np.int8)), DescriptorError, "output_zero_point has shape (2,); dimension 0 must be 1"),
        ((X, 1.0, 0, 1.0, 0, 1e39), DescriptorError, "alpha is 1e+39, outside the range of FLOAT32"),
        ((X, 1.0, 0, 1.0, 0, np.float16(1)), DescriptorTypeError, "alpha has data type FLOAT16; it must be FLOAT32"),
        ((X, 1.0, 0, 1.0, 0, np.ones(2, np.float32)), DescriptorError, "alpha has shape (2,), but must have 1 element"),
        ((X, 1.0, 0, 1.0, 0, "1"), DescriptorTypeError, "alpha must be an array or a Python int or float, not str"),
    ],
)
def test_bad_operands(operands, error, text):
    *five, alpha = operands if len(operands) == 6 else (*operands, 0.01)
    with pytest.raises(DescriptorError) as raised:
        jquant.quantized_linear_leaky_relu(*five, alpha=alpha)
    assert type(raised.value) is error
    assert str(raised.value).startswith(f"quantized_linear_leaky_relu: {text}")
