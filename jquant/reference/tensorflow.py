"""TensorFlow's operators that quantize floats."""

import numpy as np
from numpy import float32

from jquant.reference.rounding import away, clamp, saturate


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
            tiny = np.finfo(float32).tiny  # subnormal numbers become 0
            low, high = (np.where(abs(bound) < tiny, float32(0), bound) for bound in (min_t / scale, max_t / scale))
            value = np.maximum(np.minimum(x, high), low) * scale
            value = np.rint(value) if round_mode == "HALF_TO_EVEN" else away(value)
        return saturate(value, dtype), low, high


def quantize_and_dequantize(
    x, low=None, high=None, signed_input=True, num_bits=8, round_mode="HALF_TO_EVEN", narrow_range=False, axis=None
):
    """TensorFlow's QuantizeAndDequantizeV4. Without a range, it uses that of the values."""
    with np.errstate(all="ignore"):
        x, range_given = np.asarray(x, float32), low is not None
        if not range_given:
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
        if range_given:
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


def along(bound, x, axis):
    """A bound per tensor, or per slice along an axis, in a shape that broadcasts to that of `x`."""
    shape = () if axis is None else [-1 if dimension == axis else 1 for dimension in range(x.ndim)]
    return np.asarray(bound, float32).reshape(shape)
