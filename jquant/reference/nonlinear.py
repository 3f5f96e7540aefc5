"""Sigmoid and softmax of com.microsoft, computed in float64, and average pooling."""

import itertools
import math

import numpy as np
from numpy import float32

from jquant.reference.linear import dequantize_linear, quantize_linear


def normal(value):
    """A float64 value rounded to float32, and to 0 if that is subnormal."""
    rounded = np.asarray(value).astype(float32)
    return np.where(abs(rounded) < np.finfo(float32).tiny, float32(0), rounded)


def quantized_linear_sigmoid(x, x_scale, x_zero_point, y_scale, y_zero_point):
    with np.errstate(all="ignore"):
        value = normal(1 / (1 + np.exp(-dequantize_linear(x, x_scale, x_zero_point).astype(np.float64))))
    return quantize_linear(value, y_scale, y_zero_point, np.asarray(x).dtype)


def quantized_linear_softmax(x, x_scale, x_zero_point, y_scale, y_zero_point, axis):
    """The zero point cancels out. The largest element is subtracted, so that no exponential is larger than 1."""
    with np.errstate(all="ignore"):
        largest = np.where(np.asarray(x_scale) < 0, x.min(axis, keepdims=True), x.max(axis, keepdims=True))
        exponentials = np.exp(dequantize_linear(x, x_scale, largest).astype(np.float64))
        value = normal(exponentials / exponentials.sum(axis, keepdims=True))
    return quantize_linear(value, y_scale, y_zero_point, x.dtype)


def window_sums(x, zero_point, window_sizes, strides, dilations, padding, include_padding):
    """The sum over each window, and the number of elements that count; `padding` has a pair for each dimension."""
    offset = np.pad(x.astype(np.int64) - np.asarray(zero_point).astype(np.int64), ((0, 0), (0, 0), *padding))
    counted = np.pad(np.ones(x.shape[2:], np.int64), padding, constant_values=include_padding)
    dilated_sizes = [(size - 1) * dilation + 1 for size, dilation in zip(window_sizes, dilations, strict=True)]
    starts = [
        range(0, size - extent + 1, stride)
        for size, extent, stride in zip(offset.shape[2:], dilated_sizes, strides, strict=True)
    ]
    shape = tuple(map(len, starts))
    total, count = np.zeros((*x.shape[:2], *shape), np.int64), np.zeros((1, 1, *shape), np.int64)
    for index, start in zip(np.ndindex(shape), itertools.product(*starts), strict=True):
        window = tuple(
            slice(first, first + extent, dilation)
            for first, extent, dilation in zip(start, dilated_sizes, dilations, strict=True)
        )
        total[(..., *index)] = offset[(..., *window)].sum(tuple(range(2, x.ndim)))
        count[(..., *index)] = counted[window].sum()
    return total, count


def quantized_average(total, count, x_scale, y_scale, y_zero_point, dtype):
    """``fl(fl(fl(total) * x_scale) / count)``, quantized, where the total is modulo 2**32."""
    with np.errstate(all="ignore"):
        value = total.astype(np.int32).astype(float32) * np.asarray(x_scale, float32) / np.asarray(count, float32)
    return quantize_linear(value, y_scale, y_zero_point, dtype)


def quantized_linear_average_pool(x, x_scale, x_zero_point, y_scale, y_zero_point, dtype, **windows):
    return quantized_average(*window_sums(x, x_zero_point, **windows), x_scale, y_scale, y_zero_point, dtype)


def quantized_linear_global_average_pool(x, x_scale, x_zero_point, y_scale, y_zero_point):
    total = (x.astype(np.int64) - np.asarray(x_zero_point).astype(np.int64)).sum(tuple(range(2, x.ndim)), keepdims=True)
    return quantized_average(total, math.prod(x.shape[2:]), x_scale, y_scale, y_zero_point, x.dtype)
