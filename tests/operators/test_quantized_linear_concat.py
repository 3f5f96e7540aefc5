"""`quantized_linear_concat`: all 256 values against the formula, unchanged values, axes, and errors."""

import functools

import jax
import numpy as np
import pytest

import jquant
from jquant import DescriptorError, DescriptorTypeError
from jquant.cases import samples
from jquant.reference import elementwise as reference

from .elementwise import COUNT, FACTOR, INTEGERS, columns, parameters, values


@pytest.mark.parametrize("output_dtype", INTEGERS)
def test_every_integer(output_dtype):
    """int8 and uint8 inputs, with parameters that are arguments of the caller's program, and scales that it computes."""
    rng = np.random.default_rng(2)
    operands = parameters(rng, np.int8, np.uint8, output_dtype)
    a, b = map(values, INTEGERS)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, None, *[0] * 6))
    def joined(a, b, a_scale, a_zero_point, b_scale, b_zero_point, *output):
        def call(a_scale):
            return jquant.quantized_linear_concat([(a, a_scale, a_zero_point), (b, b_scale, b_zero_point)], *output, axis=0)

        return call(a_scale), call(a_scale * FACTOR)

    def formula(a_scale, a_zero_point, b_scale, b_zero_point, *output):
        rows = [np.broadcast_to(x, (COUNT, 256)) for x in (a, b)]
        triples = [(rows[0], a_scale, a_zero_point), (rows[1], b_scale, b_zero_point)]
        return reference.quantized_linear_concat(triples, *output, 1, output_dtype)

    a_scale, *others = columns(operands)
    traced, computed = joined(a, b, *operands)
    np.testing.assert_array_equal(traced, formula(a_scale, *others), strict=True)
    np.testing.assert_array_equal(computed, formula(a_scale * FACTOR, *others), strict=True)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_what_has_the_quantization_of_the_output_comes_out_unchanged(dtype):
    """For every zero point, and scales from the smallest normal number to the largest without overflow."""
    rng = np.random.default_rng(3)
    largest = np.float32(np.finfo(np.float32).max / 255)
    scales = np.concatenate([np.exp2(rng.uniform(-126, 120, 509)).astype(np.float32), [samples.TINY, 1, largest]])
    x, zero_points = values(dtype), values(dtype)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, None, 0))
    @functools.partial(jax.vmap, in_axes=(None, 0, None))
    def joined(x, zero_point, scale):
        return jquant.quantized_linear_concat([(x, scale, zero_point)], scale, zero_point, axis=0)

    actual = joined(x, zero_points, scales.astype(np.float32))
    assert actual.shape == (512, 256, 256)
    np.testing.assert_array_equal(actual, np.broadcast_to(x, actual.shape), strict=True)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axis(axis):
    """Sizes may differ along the axis, and be 0."""
    rng = np.random.default_rng(4)

    def tensor(size):
        return samples.integers(rng, np.int8, *(size if dimension == axis else 2 for dimension in range(3)))

    triples = [(tensor(size), np.float32(scale), zero) for size, scale, zero in ((3, 0.5, 1), (0, 1, 0), (1, 0.25, -7))]
    actual = jquant.quantized_linear_concat(triples, 0.75, 2, axis=axis)
    expected = reference.quantized_linear_concat(triples, np.float32(0.75), 2, axis, np.int8)
    np.testing.assert_array_equal(actual, expected, strict=True)


def test_defaults():
    a, b = np.array([1, 2], np.int8), np.array([3, 200], np.uint8)
    actual = jquant.quantized_linear_concat([(a, 1.0, None), (b, 1.0, None)], 1.0, axis=0)
    np.testing.assert_array_equal(actual, np.array([1, 2, 3, 127], np.int8), strict=True)
    assert jquant.quantized_linear_concat([(a, 1.0, 0)], 1.0, np.uint8(5), axis=0).dtype == np.uint8
    assert jquant.quantized_linear_concat(((a, 1.0, 0),), 1.0, 200, axis=0, output_dtype="UINT8").dtype == np.uint8


def concat(inputs, *output, axis=0, **options):
    return jquant.quantized_linear_concat(inputs, *(output or (1.0, 0)), axis=axis, **options)


X = np.ones((2, 3), np.int8)
VALID = X, 1.0, 0


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: concat([]), DescriptorError, "inputs is empty; it must have at least one tuple"),
        (lambda: concat(VALID), DescriptorError, "inputs[0] must be a tuple (tensor, scale, zero point)"),
        (lambda: concat([VALID, VALID[:2]]), DescriptorError, "inputs[1] must be a tuple (tensor, scale, zero point)"),
        (lambda: concat([VALID, (1, 1.0, 0)]), DescriptorTypeError, "inputs[1] is the Python scalar 1; it must be an array"),
        (lambda: concat([VALID, (X, 1e39, 0)]), DescriptorError, "inputs[1]_scale is 1e+39, outside the range of FLOAT32, "),
        (
            lambda: concat([VALID, (X, 1.0, 128)]),
            DescriptorError,
            "inputs[1]_zero_point is 128, outside the range of INT8, [-128, 127]",
        ),
        (
            lambda: concat([VALID, (X, 1.0, np.uint8(1))]),
            DescriptorTypeError,
            "inputs[1]_zero_point has data type UINT8; it must match the data type of inputs[1], INT8",
        ),
        (
            lambda: concat([VALID, (X.astype(np.int16), 1.0, None)]),
            DescriptorTypeError,
            "inputs[1] has data type INT16; the operator allows INT8, UINT8",
        ),
        (
            lambda: concat([VALID, (X, np.float16(1), 0)]),
            DescriptorTypeError,
            "inputs[1]_scale has data type FLOAT16; the operator allows FLOAT32",
        ),
        (
            lambda: concat([VALID, (X, np.ones((1, 3), np.float32), 0)]),
            DescriptorError,
            "inputs[1]_scale has shape (1, 3), but must have 1 element",
        ),
        (lambda: concat([VALID], 1.0, 300), DescriptorError, "output_zero_point is 300, outside the range of INT8"),
        (
            lambda: concat([VALID], np.float16(1)),
            DescriptorTypeError,
            "output_scale has data type FLOAT16; the operator allows",
        ),
        (
            lambda: concat([VALID], 1.0, output_dtype="INT32"),
            DescriptorTypeError,
            "output_dtype is INT32; the operator allows",
        ),
        (
            lambda: concat([VALID], 1.0, np.int8(1), output_dtype="UINT8"),
            DescriptorTypeError,
            "output_zero_point has data type INT8; it must match the data type of the output, UINT8",
        ),
        *(
            (
                lambda axis=axis: concat([VALID, VALID], axis=axis),
                DescriptorError,
                f"axis is {axis}; it must be a dimension of the input, from -2 to 1",
            )
            for axis in (-3, 2)
        ),
        *(
            (
                lambda sizes=sizes: concat([VALID, (np.ones(sizes, np.int8), 1.0, 0)]),
                DescriptorError,
                f"inputs[1] has shape {sizes}, inputs[0] has (2, 3): they must be the same except in dimension 0",
            )
            for sizes in ((2, 4), (2, 1), (3,), (), (1, 2, 3), (2, 3, 1))
        ),
    ],
)
def test_bad_operands(call, error, text):
    with pytest.raises(DescriptorError) as raised:
        call()
    assert type(raised.value) is error
    assert str(raised.value).startswith(f"quantized_linear_concat: {text}")
