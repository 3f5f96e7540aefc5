"""The formulas of the documents in NumPy, step by step: what the operators must equal, bit for bit.

Independent of the operators, and as plain as the formulas. NumPy rounds every float32 operation once. The tests and
``python -m jquant`` compare with it.
"""

import numpy as np
from numpy.typing import ArrayLike

float32 = np.float32


def dequantize_linear(x, scale, zero_point: ArrayLike = 0):
    """``(x - zero_point) * scale``: the difference in 64 bits."""
    offset = np.asarray(x).astype(np.int64) - np.asarray(zero_point).astype(np.int64)
    scale = np.asarray(scale)
    with np.errstate(all="ignore"):
        return (offset.astype(float32) * scale.astype(float32)).astype(scale.dtype)


def quantize_linear(x, scale, zero_point, dtype):
    """``sat(rne(x / scale) + zero_point)``, NaN -> 0."""
    with np.errstate(all="ignore"):
        quotient = np.asarray(x).astype(float32) / np.asarray(scale).astype(float32)
    return saturate(np.rint(quotient).astype(np.float64) + np.asarray(zero_point).astype(np.float64), dtype)


def quantized_linear_add(a, a_scale, a_zero_point, b, b_scale, b_zero_point, output_scale, output_zero_point, dtype):
    with np.errstate(all="ignore"):
        value = dequantize_linear(a, a_scale, a_zero_point) + dequantize_linear(b, b_scale, b_zero_point)
    return quantize_linear(value, output_scale, output_zero_point, dtype)


def matmul_integer(a, b, a_zero_point: ArrayLike = 0, b_zero_point: ArrayLike = 0):
    """Zero points in a shape that broadcasts; modulo 2**32."""
    a, b = (
        np.asarray(x).astype(np.int64) - np.asarray(z).astype(np.int64) for x, z in ((a, a_zero_point), (b, b_zero_point))
    )
    return (a @ b).astype(np.int32)


def matmul_integer_to_float(a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias=None, dtype=float32):
    """``fl(fl(acc) * fl(a_scale * b_scale)) + bias``; scales and zero points in a shape that broadcasts."""
    with np.errstate(all="ignore"):
        scale = np.asarray(a_scale).astype(float32) * np.asarray(b_scale).astype(float32)
        value = matmul_integer(a, b, a_zero_point, b_zero_point).astype(float32) * scale
        if bias is not None:
            value = value + np.asarray(bias).astype(float32)
        return value.astype(dtype)


def quantized_linear_matmul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, output_scale, output_zero_point, dtype):
    """``sat(rne(fl(acc) * fl(fl(a_scale * b_scale) / output_scale)) + output_zero_point)``"""
    with np.errstate(all="ignore"):
        multiplier = np.asarray(a_scale, float32) * np.asarray(b_scale, float32) / np.asarray(output_scale, float32)
        value = matmul_integer(a, b, a_zero_point, b_zero_point).astype(float32) * multiplier
    return saturate(np.rint(value).astype(np.float64) + np.asarray(output_zero_point).astype(np.float64), dtype)


def clip(x, low=-np.inf, high=np.inf, scale_bias=None):
    """``max(Min, min(g(x), Max))``"""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        if np.issubdtype(x.dtype, np.integer):
            low, high = (saturate(np.trunc(float32(bound)), x.dtype) for bound in (low, high))
        else:
            low, high = float32(low).astype(x.dtype), float32(high).astype(x.dtype)
        if scale_bias is not None:
            scale, bias = map(float32, scale_bias)
            x = ((x.astype(float32) * scale) + bias).astype(x.dtype)
        return np.maximum(low, np.minimum(x, high))


def saturate(x, dtype):
    """The integer `dtype` of float values: NaN -> 0, then limits."""
    limits, dtype = np.iinfo(dtype), np.dtype(dtype).type
    x = np.where(np.isnan(x), 0, np.asarray(x, np.float64))
    inside = np.where((x >= limits.max) | (x <= limits.min), 0, x).astype(dtype)
    return np.where(x >= limits.max, dtype(limits.max), np.where(x <= limits.min, dtype(limits.min), inside)).astype(dtype)


def quantize(x, low, high, dtype, mode, round_mode="HALF_AWAY_FROM_ZERO", narrow_range=False, ensure_minimum_range=0.01):
    """TensorFlow's QuantizeV2: output, output_min, output_max. Ranges broadcast."""
    with np.errstate(all="ignore"):
        limits = np.iinfo(dtype)
        x, low, high, least = (np.asarray(value, float32) for value in (x, low, high, ensure_minimum_range))
        epsilon = np.maximum(float32(1), np.maximum(abs(low), abs(high))) * least
        low = np.minimum(float32(0), low)
        high = np.maximum(float32(0), np.maximum(high, low + epsilon))
        steps = (np.float64(limits.max) - np.float64(limits.min)) / (high - low).astype(np.float64)
        if mode == "MIN_COMBINED":
            value = (np.maximum(np.minimum(x, high), low) - low) * steps.astype(float32)
            half = float32(2.0 ** (limits.bits - 1))
            value = away(value - half) if limits.min < 0 else np.trunc(value + float32(0.5))
        elif mode == "MIN_FIRST":
            scale = np.where(high == low, float32(0), steps.astype(float32))
            offset = away(low * scale) - float32(limits.min)
            value = away(x * scale) - offset
            value = np.minimum(np.maximum(value, float32(limits.min)), float32(min(limits.max, 2147483520)))
        else:
            min_t, max_t, largest = float32(limits.min + narrow_range), float32(limits.max), np.finfo(float32).max
            scale = np.minimum(
                np.where(min_t * low > 0, min_t / low, largest), np.where(max_t * high > 0, max_t / high, largest)
            ).astype(float32)
            low, high = min_t / scale, max_t / scale
            value = np.maximum(np.minimum(x, high), low) * scale
            value = np.rint(value) if round_mode == "HALF_TO_EVEN" else away(value)
        return saturate(value, dtype), low, high


def quantize_and_dequantize(
    x, low=None, high=None, signed_input=True, num_bits=8, round_mode="HALF_TO_EVEN", narrow_range=False, axis=None
):
    """TensorFlow's QuantizeAndDequantizeV4; without a range, with that of the values."""
    with np.errstate(all="ignore"):
        x, given = np.asarray(x, float32), low is not None
        if not given:
            others = tuple(dimension for dimension in range(x.ndim) if dimension != axis)
            low, high = x.min(others, initial=np.inf), x.max(others, initial=-np.inf)
        low, high = along(low, x, axis), along(high, x, axis)
        half, unlimited = 2 ** (num_bits - 1), np.finfo(float32).max
        limits = (narrow_range - half, half - 1) if signed_input else (0, 2 * half - 1)
        smallest, largest = map(float32, limits)
        low_scale = np.where(smallest * low > 0, smallest / low, unlimited)
        high_scale = np.where(largest * high > 0, largest / high, unlimited)
        by_low = low_scale < high_scale
        scale, inverse = np.where(by_low, low_scale, high_scale), np.where(by_low, low / smallest, high / largest)
        if given:
            x = clamp(x, np.where(by_low, low, smallest * inverse), np.where(by_low, largest * inverse, high))
        value = x * scale
        return (np.rint(value) if round_mode == "HALF_TO_EVEN" else np.floor(value + float32(0.5))) * inverse


def fake_quantize(x, low, high, num_bits=8, narrow_range=False, axis=None):
    """TensorFlow's FakeQuantWithMinMaxVars and, with an axis, FakeQuantWithMinMaxVarsPerChannel."""
    with np.errstate(all="ignore"):
        x = np.asarray(x, float32)
        low, high = along(low, x, axis), along(high, x, axis)
        smallest, largest = float32(narrow_range), float32(2**num_bits - 1)
        scale, inverse = (high - low) / (largest - smallest), (largest - smallest) / (high - low)
        zero_point = clamp(away(smallest - low / scale), smallest, largest)
        nudged_low, nudged_high = (smallest - zero_point) * scale, (largest - zero_point) * scale
        zero = np.floor(-nudged_low * inverse + float32(0.5))
        offset = clamp(x, nudged_low, nudged_high) - nudged_low
        steps = offset / scale if axis is None else offset * inverse
        value = np.floor(steps - zero + float32(0.5)) * scale
        return np.where((low == 0) & (high == 0), float32(0), value)


def clamp(x, low, high):
    """C++'s `std::max(std::min(x, high), low)`, in which a bound that is NaN does nothing."""
    x = np.where(high < x, high, x)
    return np.where(x < low, low, x)


def along(bound, x, axis):
    """A bound per tensor or per slice, in sizes that broadcast."""
    shape = () if axis is None else [-1 if dimension == axis else 1 for dimension in range(x.ndim)]
    return np.asarray(bound, float32).reshape(shape)


def away(x):
    """C's `roundf`: ties away from zero, in float32."""
    whole = np.trunc(x)
    return np.copysign(whole + np.where(abs(x - whole) >= float32(0.5), np.sign(x), float32(0)), x).astype(float32)
