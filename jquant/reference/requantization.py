"""TensorFlow's Dequantize, and its operators that requantize 32-bit integers."""

import numpy as np
from numpy import float32, float64

from jquant.reference.rounding import away, clamp, saturate
from jquant.reference.tensorflow import along


def dequantize(x, low, high, mode="MIN_COMBINED", narrow_range=False, axis=None, dtype=float32):
    """TensorFlow's Dequantize."""
    with np.errstate(all="ignore"):
        x, limits = np.asarray(x), np.iinfo(np.asarray(x).dtype)
        low, high, value = along(low, x, axis), along(high, x, axis), x.astype(float32)
        scale = ((high - low).astype(float64) / (2.0**limits.bits - 1)).astype(float32)
        if mode == "MIN_COMBINED":
            return ((value - float32(limits.min)) * scale + low).astype(dtype)
        if mode == "MIN_FIRST":
            rounded = np.where(high == low, low, away(low / scale) * scale)
            return (rounded - float32(limits.min) * scale) + value * scale
        scale = high / float32(limits.max)
        if limits.min < 0:
            from_low = low / float32(limits.min + narrow_range)
            scale = np.where(from_low < scale, scale, from_low)
        return value * scale


def requantize(x, low, high, new_low, new_high, dtype):
    """TensorFlow's Requantize: output, output_min, output_max. For quint8 in Python integers, which do not wrap."""
    x, (low, high, new_low, new_high) = np.asarray(x), map(float32, (low, high, new_low, new_high))
    with np.errstate(all="ignore"):
        width, new_width = float64(high - low), float64(new_high - new_low)
        if np.dtype(dtype) == np.int8:
            value = dequantize(x, low, high, "MIN_FIRST")
            scale = float32(0 if new_width == 0 else 255 / new_width)
            value = away(value * scale) - (away(new_low * scale) + float32(128))
            return saturate(clamp(value, float32(-128), float32(127)), dtype), new_low, new_high
        scale, offset = 0, 0
        if new_width != 0:
            scale = integer(255.0 * 2**16 * width / new_width, np.trunc)
            center = (low + high) / float32(2)
            offset = integer(center * float32(255 / new_width) * float32(2**16), np.trunc)
            offset -= integer(
                2.0**16 * (float64(new_low) * 255) / new_width, lambda x: np.copysign(np.floor(abs(x) + 0.5), x)
            )
        values = [min(max((int(value) * scale >> 32) + offset + 2**15 >> 16, 0), 255) for value in x.astype(float32).flat]
        return np.array(values, np.uint8).reshape(x.shape), new_low, new_high


def integer(x, rounding):
    """A float64 rounded by a function to an integer that fits 64 bits; 0 for NaN."""
    return 0 if np.isnan(x) else int(rounding(np.clip(x, -(2.0**63), 2.0**63)))


def requantization_range(x, low, high):
    """TensorFlow's RequantizationRange."""
    limits, low, high = np.iinfo(np.int32), float32(low), float32(high)

    def real(value):
        if low == high:
            return low
        scale = float64(high - low) * (2.0**32 / (2.0**32 - 1)) / 2.0**32
        rounded = away(low / float32(scale)) * float32(scale)
        return float32(float64(rounded) + (float64(float32(value)) + 2.0**31) * scale)

    with np.errstate(all="ignore"):
        smallest, largest = real(np.min(x, initial=limits.max)), real(np.max(x, initial=limits.min))
    return np.minimum(float32(0), smallest), largest


def quantize_down_and_shrink_range(x, low, high):
    """TensorFlow's QuantizeDownAndShrinkRange: output, output_min, output_max."""
    return requantize(x, low, high, *requantization_range(x, low, high), np.uint8)


def requantization_range_per_channel(x, low, high, clip_value_max=np.inf):
    """TensorFlow's RequantizationRangePerChannel."""
    with np.errstate(all="ignore"):
        largest = np.max(abs(x.astype(float32)), tuple(range(x.ndim - 1)), initial=0)
        channel_maxima = np.maximum(abs(low), abs(high)) * largest / float32(2**31)
        output_max = np.fmin(np.max(channel_maxima, initial=np.finfo(float32).tiny), float32(clip_value_max))
    return (-output_max if np.any(x < 0) else float32(0)), output_max


def requantize_per_channel(x, low, high, new_low, new_high, dtype):
    """TensorFlow's RequantizePerChannel: output, output_min, output_max."""
    with np.errstate(all="ignore"):
        ratio = np.maximum(abs(low), abs(high)) / np.maximum(abs(new_low), abs(new_high)) / float32(2**31)
        value = x.astype(float32) * (float32(np.iinfo(dtype).max) * ratio)
    return saturate(np.rint(value), dtype), new_low, new_high
