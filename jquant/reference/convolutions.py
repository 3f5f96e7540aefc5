"""The convolutions of DirectML and ONNX, with batch and channels first."""

import numpy as np
from numpy import float32
from numpy.typing import ArrayLike

from jquant.reference.rounding import saturate


def convolution_integer(
    x, w, x_zero_point: ArrayLike = 0, w_zero_point: ArrayLike = 0, *, strides=None, padding=None, dilations=None, groups=1
):
    """Sums over windows, in 64 bits, modulo 2**32. The padding is 0 after the zero point is subtracted."""
    rank = x.ndim - 2
    strides, dilations, padding = strides or (1,) * rank, dilations or (1,) * rank, padding or ((0, 0),) * rank
    x = np.asarray(x).astype(np.int64) - np.asarray(x_zero_point).astype(np.int64).reshape(())
    w = np.asarray(w).astype(np.int64) - np.asarray(w_zero_point).astype(np.int64).reshape(-1, *(1,) * (rank + 1))
    x = np.pad(x, ((0, 0), (0, 0), *padding))
    (batch, channels, *space), (filters, depth, *sizes) = x.shape, w.shape
    x = x.reshape(batch, groups, channels // groups, *space)
    w = w.reshape(groups, filters // groups, depth, *sizes)
    dilated_sizes = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]
    counts = [max(0, (n - r) // stride + 1) for n, r, stride in zip(space, dilated_sizes, strides, strict=True)]
    output = np.zeros((batch, groups, filters // groups, *counts), np.int64)
    for element in np.ndindex(*sizes):
        starts = [i * dilation for i, dilation in zip(element, dilations, strict=True)]
        window = [
            slice(start, start + count * stride, stride)
            for start, count, stride in zip(starts, counts, strides, strict=True)
        ]
        values = x[:, :, :, *window][:, :, :, *map(slice, counts)]
        output += np.einsum("ngc...,gfc->ngf...", values, w[:, :, :, *element])
    return output.reshape(batch, filters, *counts).astype(np.int32)


def convolution_integer_to_float(x, x_scale, x_zero_point, w, w_scale, w_zero_point, bias=None, dtype=float32, **options):
    """``fl(fl(acc) * fl(x_scale * w_scale)) + bias``, where the bias is a real number."""
    per_filter = (-1, *(1,) * (x.ndim - 2))
    with np.errstate(all="ignore"):
        scale = np.asarray(x_scale).astype(float32).reshape(-1) * np.asarray(w_scale).astype(float32).reshape(-1)
        value = convolution_integer(x, w, x_zero_point, w_zero_point, **options).astype(float32) * scale.reshape(per_filter)
        if bias is not None:
            value = value + np.asarray(bias).astype(float32).reshape(per_filter)
        return value.astype(dtype)


def quantized_linear_convolution(
    x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, bias=None, *, dtype, **options
):
    """``sat(rne(fl(acc + bias) * fl(fl(x_scale * w_scale) / y_scale)) + y_zero_point)``, where the bias is an int32."""
    per_filter = (-1, *(1,) * (x.ndim - 2))
    total = convolution_integer(x, w, x_zero_point, w_zero_point, **options)
    if bias is not None:
        total = (total.astype(np.int64) + np.reshape(bias, per_filter)).astype(np.int32)
    with np.errstate(all="ignore"):
        multiplier = np.reshape(x_scale, -1) * np.reshape(w_scale, -1) / np.reshape(y_scale, -1)
        value = total.astype(float32) * multiplier.astype(float32).reshape(per_filter)
    return saturate(np.rint(value).astype(np.float64) + np.asarray(y_zero_point).astype(np.float64).reshape(()), dtype)
