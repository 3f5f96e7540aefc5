"""Operands of different ranks: aligned as in NumPy and ONNX at `FeatureLevel.EXTENDED`, refused below it."""

import functools
import itertools

import jax
import numpy as np
import pytest
from support.sampling import one_in

import jquant
from jquant import DescriptorError
from jquant.cases import samples
from jquant.reference import elementwise as elementwise_reference
from jquant.reference import products as products_reference

from .operands import FILTERS, IMAGE, A, X

MATRICES = [  # the shapes of A and B
    ((5, 4, 3), (3, 2)),
    ((4, 3), (5, 3, 2)),
    ((2, 5, 4, 3), (5, 3, 2)),
    ((5, 4, 3), (2, 1, 3, 2)),
    ((1,) * 6 + (4, 3), (3, 2)),
]


@one_in(3, ("packed", "ranks"), itertools.product([False, True], MATRICES), ids=str)
def test_products_of_different_ranks(packed, ranks):
    rng, (a, b) = np.random.default_rng(1), ranks
    a, b = samples.integers(rng, np.uint8, *a), samples.integers(rng, np.int8, *b)
    row, column = samples.integers(rng, np.uint8, 4, 1), samples.integers(rng, np.int8, 2)
    expected = products_reference.matmul_integer(a, b, row, column)
    operands = (a, jquant.pack_matrix(b, column), row) if packed else (a, b, row, column)
    for function in (jquant.matmul_integer, jax.jit(jquant.matmul_integer, static_argnames="feature_level")):
        np.testing.assert_array_equal(function(*operands, feature_level="EXTENDED"), expected, strict=True)
    with pytest.raises(DescriptorError, match=r"the same; reshape [ab] to .*, or use FeatureLevel.EXTENDED|a has rank 8"):
        jquant.matmul_integer(*operands)


@pytest.mark.parametrize("shape", [(), (2,), (1, 2), (4, 2), (5, 4, 2), (1, 4, 1)], ids=str)
def test_a_bias_of_a_lower_rank(shape):
    rng = np.random.default_rng(2)
    a, b = samples.integers(rng, np.uint8, 5, 4, 3), samples.integers(rng, np.int8, 3, 2)
    bias = rng.normal(size=shape).astype(np.float32)
    operands = a, np.float32(0.5), np.uint8(3), b, np.float32(0.25), np.int8(1), bias
    actual = jquant.matmul_integer_to_float(*operands, feature_level="EXTENDED")
    np.testing.assert_array_equal(actual, products_reference.matmul_integer_to_float(*operands), strict=True)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (1, 4, 1), (1, 4, 1, 1)], ids=str)
def test_a_bias_of_a_convolution(shape):
    bias = np.array([1000, -2000, 30000, -400000], np.int32)
    convolve = functools.partial(jquant.quantized_linear_convolution, IMAGE, 0.5, 3, FILTERS, 0.25, None, 50.0, 7)
    expected = convolve(bias.reshape(1, 4, 1, 1))
    np.testing.assert_array_equal(convolve(bias.reshape(shape), feature_level="EXTENDED"), expected, strict=True)
    if len(shape) == 1:
        text = (
            r"6_4 allows 3 to 4; 1 is allowed from FeatureLevel.EXTENDED on; reshape it to \(1, -1, 1, 1\) \(BiasTensor of"
        )
        with pytest.raises(DescriptorError, match=text):
            convolve(bias)
    with pytest.raises(DescriptorError, match="bias has shape \\(3,\\); dimension 0 must be 4"):
        convolve(bias[:3], feature_level="EXTENDED")


def test_a_bias_of_one_spatial_dimension():
    with pytest.raises(DescriptorError, match=r"reshape it to \(1, -1, 1\) \(BiasTensor of"):
        jquant.quantized_linear_convolution(
            IMAGE[..., 0], 0.5, None, FILTERS[..., 0], 0.25, None, 50.0, None, np.zeros(4, np.int32)
        )


def test_elements_of_different_ranks():
    short, long = A[0], np.stack([A, A[::-1]])
    operands = long, np.float32(0.5), np.uint8(3), short, np.float32(0.25), np.uint8(1), np.float32(0.7), np.uint8(9)
    actual = jquant.quantized_linear_add(*operands, feature_level="EXTENDED")
    np.testing.assert_array_equal(actual, elementwise_reference.quantized_linear_add(*operands, np.uint8), strict=True)
    actual = jquant.quantized_linear_multiply(*operands)
    np.testing.assert_array_equal(actual, elementwise_reference.quantized_linear_multiply(*operands, np.uint8), strict=True)
    for function in (jquant.clip_gradient, jquant.clip_gradient1):
        actual = function(X, X[0], -0.5, 0.5, feature_level="EXTENDED")
        np.testing.assert_array_equal(actual, np.where((X <= -0.5) | (X >= 0.5), 0, X[0]))
        with pytest.raises(DescriptorError, match=r"input_gradient has shape \(3,\).*; reshape it to \(1, 3\)"):
            function(X, X[0], -0.5, 0.5)
