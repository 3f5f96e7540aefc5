"""Padding as ONNX and TensorFlow write it, and axes that count from the end."""

import functools

import numpy as np
import pytest

import jquant
from jquant import DescriptorError
from jquant.cases import samples

from .operands import IMAGE, A, X


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_padding_in_onnx_words(rank):
    rng = np.random.default_rng(3)
    x, w = (
        samples.integers(rng, np.uint8, 1, 2, 7, 6, 5)[..., 0, 0],
        samples.integers(rng, np.int8, 3, 2, 2, 3, 2)[..., 0, 0],
    )
    if rank > 1:
        x = samples.integers(rng, np.uint8, 1, 2, *(7, 6, 5)[:rank])
        w = samples.integers(rng, np.int8, 3, 2, *(2, 3, 2)[:rank])
    convolve = functools.partial(jquant.convolution_integer, x, w, 5, 3, feature_level="EXTENDED")
    before, after = [1, 0, 2][:rank], [0, 3, 1][:rank]
    expected = convolve(padding=tuple(zip(before, after, strict=True)))
    for flat in ([*before, *after], (*before, *after), np.array([*before, *after])):
        np.testing.assert_array_equal(convolve(padding=flat), expected, strict=True)
    assert not np.array_equal(convolve(padding="SAME_UPPER"), convolve(padding="SAME_LOWER"))
    np.testing.assert_array_equal(convolve(padding="SAME_UPPER"), convolve(padding="SAME"), strict=True)


def test_padding_of_a_pool_in_onnx_words():
    pool = functools.partial(jquant.quantized_linear_average_pool, IMAGE, 0.5, 3, 0.5, 3, window_sizes=(3, 2))
    np.testing.assert_array_equal(pool(padding=[1, 0, 2, 1]), pool(padding=((1, 2), (0, 1))), strict=True)
    np.testing.assert_array_equal(pool(padding="SAME_UPPER"), pool(padding="SAME"), strict=True)
    with pytest.raises(DescriptorError, match=r"padding is \[1, 0, 2\]; .* or 4 nonnegative integers as in ONNX"):
        pool(padding=[1, 0, 2])


@pytest.mark.parametrize(
    ("padding", "window_sizes"),
    [
        ((2**31 - 1,) * 4, (3, 2)),
        ((2**30, 2**30, 0, 0), (3, 2)),  # the elements of all windows
        ("SAME", (2**31 - 1, 2**31 - 1)),
    ],
    ids=str,
)
def test_padding_that_no_array_has(padding, window_sizes):
    """XLA of some versions ends the process, so that it is refused."""
    message = r"input of \(.*\) elements with padding .*, in windows of .*, takes an array of \d+ bytes"
    with pytest.raises(DescriptorError, match=message):
        jquant.quantized_linear_average_pool(IMAGE, 0.5, 3, 0.5, 3, window_sizes=window_sizes, padding=padding)
    if padding != "SAME":
        filters = np.ones((1, IMAGE.shape[1], *window_sizes), np.int8)
        with pytest.raises(DescriptorError, match=message):
            jquant.convolution_integer(IMAGE, filters, padding=padding, feature_level="EXTENDED")


def test_axes_from_the_end():
    scale, zero_point = np.float32([0.5, 0.25, 2]), np.uint8([1, 2, 3])
    blocks = np.float32([[0.5, 0.25], [2, 1], [0.1, 0.3], [0.7, 0.9]])
    for function in (
        lambda axis: jquant.quantize_linear(X, scale, zero_point, axis=axis),
        lambda axis: jquant.dequantize_linear(A, scale, zero_point, axis=axis),
        lambda axis: jquant.quantize_linear(X, blocks, axis=axis, block_size=2),
        lambda axis: jquant.quantized_linear_softmax(A, 0.1, None, 0.01, axis=axis),
        lambda axis: jquant.quantized_linear_concat([(A, 0.5, None), (A, 0.25, 3)], 0.5, axis=axis),
        lambda axis: jquant.quantize_linear(X, scale, zero_point, axis=np.int64(axis)),
    ):
        np.testing.assert_array_equal(function(-1), function(1), strict=True)
