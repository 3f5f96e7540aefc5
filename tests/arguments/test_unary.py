"""What the unary operators of com.microsoft accept, and what they reject, alike."""

import functools

import numpy as np
import pytest
from support.programs import together

import jquant
from jquant import DescriptorError, DescriptorTypeError

FLOAT32 = np.float32


def test_scales_of_one_element_may_have_a_dimension():
    x, scale, zero = np.int8([[3, -4]]), np.full(1, 0.25, FLOAT32), np.full(1, 2, np.int8)
    for function in (jquant.quantized_linear_sigmoid, functools.partial(jquant.quantized_linear_softmax, axis=1)):
        np.testing.assert_array_equal(function(x, scale, zero, scale, zero), function(x, 0.25, 2, 0.25, 2))


@pytest.mark.parametrize("operator", ["sigmoid", "softmax", "global_average_pool"])
def test_what_the_table_does_not_have(operator):
    """One type, 8-bit integers, float32 scales of one element; zero points that may be missing."""
    function = getattr(jquant, f"quantized_linear_{operator}")
    function = functools.partial(function, axis=1) if operator == "softmax" else function
    x, scale, zero = np.ones((2, 3, 4), np.uint8), FLOAT32(0.5), np.uint8(1)
    wrong = {
        0: (x.astype(np.int16), "x has data type INT16; the operator allows INT8, UINT8", DescriptorTypeError),
        1: (np.float16(1), "x_scale has data type FLOAT16; the operator allows FLOAT32", DescriptorTypeError),
        2: (np.int8(1), "x_zero_point has data type INT8; it must match the data type of x, UINT8", DescriptorTypeError),
        3: (
            np.ones(2, FLOAT32),
            "output_scale has shape (2,); dimension 0 must be 1: its shape must be (1)",
            DescriptorError,
        ),
        4: (
            np.int8(1),
            "output_zero_point has data type INT8; it must match the data type of x, UINT8",
            DescriptorTypeError,
        ),
    }
    for position, (value, message, error) in wrong.items():
        arguments = [x, scale, zero, scale, zero]
        arguments[position] = value
        with pytest.raises(error) as raised:
            function(*arguments)
        assert message in str(raised.value)
    with pytest.raises(DescriptorError, match=r"x_zero_point is 256, outside the range of UINT8, \[0, 255\]"):
        function(x, scale, 256, scale, zero)
    with pytest.raises(DescriptorTypeError, match="x is the Python scalar 1; it must be an array"):
        function(1, scale, zero, scale, zero)
    calls = []
    for first, second in ((None, zero), (zero, None), (None, None)):
        calls.append((function, (x, scale, first, scale, second)))
        calls.append((function, (x, scale, first or np.uint8(0), scale, second or np.uint8(0))))
    results = together(calls)
    for default, explicit in zip(results[::2], results[1::2], strict=True):
        np.testing.assert_array_equal(default, explicit, strict=True)
