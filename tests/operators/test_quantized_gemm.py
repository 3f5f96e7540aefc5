"""`quantized_gemm`: shapes of C, sums that wrap, output types, and errors."""

import re

import numpy as np
import pytest
from support.comparison import assert_equal

import jquant
from jquant.cases import samples
from jquant.reference import products as reference

from .products import INTEGERS


def gemm(c, a_scale=0.5, b_scale=0.25, **options):
    """Asserts that the operator gives the reference's result for a small product."""
    a, b = np.uint8([[11, 7, 3], [10, 6, 2]]), np.int8([[1, 4], [2, 5], [3, 6]])
    output = jquant.quantized_gemm(a, a_scale, 12, b, b_scale, None, c, 0.25, 100, **options)
    assert_equal(output, reference.quantized_gemm(a, 0.5, 12, b, 0.25, 0, c, 0.25, np.uint8(100), output.dtype))


@pytest.mark.parametrize("sizes", [None, (), (1,), (2,), (1, 1), (1, 2), (2, 1), (2, 2)])
def test_c_broadcasts(sizes):
    gemm(None if sizes is None else samples.integers(np.random.default_rng(0), np.int8, *sizes).astype(np.int32))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_output_types(dtype):
    gemm(np.int32([200, -300]), output_dtype=dtype)


def test_the_sum_wraps():
    """The sum of the product and C wraps modulo 2**32, like the product."""
    one = np.ones((1, 1), np.int8)
    output = jquant.quantized_gemm(one, 1.0, None, one, 1.0, None, 2**31 - 1, 2.0**24, output_dtype="INT8")
    assert_equal(output, np.int8([[-128]]))
    assert_equal(jquant.quantized_gemm(one, 1.0, None, one, 1.0, None, 2**31 - 2, 2.0**25), np.int8([[64]]))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"c": np.int32([1, 2, 3])},
            "c has shape (3,); dimension 0 must be 1 or 2: CColumnCount is 1 or N, which is 2 in b",
        ),
        (
            {"c": np.ones((3, 2), np.int32)},
            "c has shape (3, 2); dimension 0 must be 1 or 2: CRowCount is 1 or M, which is 2",
        ),
        ({"c": np.float32(1)}, "c has data type FLOAT32; the operator allows INT32"),
        ({"c": 0.5}, "c is 0.5, but must be an integer of type INT32"),
        (
            {"c": None, "a_scale": np.ones((1, 2), np.float32)},
            "a_scale has rank 2 (shape (1, 2)); the operator allows 0 to 1",
        ),
        (
            {"c": None, "b_scale": np.ones(3, np.float32)},
            "b_scale has shape (3,); dimension 0 must be 1 or 2: BScaleCount is 1 or N",
        ),
        ({"c": None, "output_dtype": "INT32"}, "output_dtype is INT32; the operator allows INT8, UINT8"),
    ],
)
def test_errors(changed, text):
    with pytest.raises(jquant.DescriptorError, match=f"quantized_gemm: {re.escape(text)}"):
        gemm(**changed)


def test_packed_weights_hold_their_zero_point():
    packed = jquant.pack_matrix(np.ones((3, 2), np.int8))
    with pytest.raises(jquant.DescriptorError, match="quantized_gemm: b_zero_point is given with packed weights"):
        jquant.quantized_gemm(np.ones((2, 3), np.uint8), 1.0, None, packed, 1.0, 3, None, 1.0)
