"""Element-wise operators of DirectML and ONNX on quantized tensors, and their concatenation."""

import numpy as np
from numpy import float32

from jquant.reference.linear import dequantize_linear, quantize_linear


def quantized_linear_add(a, a_scale, a_zero_point, b, b_scale, b_zero_point, output_scale, output_zero_point, dtype):
    with np.errstate(all="ignore"):
        value = dequantize_linear(a, a_scale, a_zero_point) + dequantize_linear(b, b_scale, b_zero_point)
    return quantize_linear(value, output_scale, output_zero_point, dtype)


def quantized_linear_multiply(a, a_scale, a_zero_point, b, b_scale, b_zero_point, output_scale, output_zero_point, dtype):
    """``sat(rne(fl(fl(p * fl(a_scale * b_scale)) / output_scale)) + output_zero_point)``, p the integer product."""
    a, b = (
        np.asarray(x).astype(np.int64) - np.asarray(z).astype(np.int64) for x, z in ((a, a_zero_point), (b, b_zero_point))
    )
    with np.errstate(all="ignore"):
        value = (a * b).astype(float32) * (np.asarray(a_scale, float32) * np.asarray(b_scale, float32))
    return quantize_linear(value, output_scale, output_zero_point, dtype)


def quantized_linear_leaky_relu(x, scale, zero_point, output_scale, output_zero_point, alpha, dtype):
    value = dequantize_linear(x, scale, zero_point)
    with np.errstate(all="ignore"):
        value = np.where(value < 0, float32(alpha) * value, value)
    return quantize_linear(value, output_scale, output_zero_point, dtype)


def quantized_linear_concat(inputs, output_scale, output_zero_point, axis, dtype):
    values = [dequantize_linear(*operands) for operands in inputs]
    return np.concatenate([quantize_linear(value, output_scale, output_zero_point, dtype) for value in values], axis)
