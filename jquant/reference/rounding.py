"""Rounding, saturation and clamping, as the specifications define them."""

import numpy as np
from jax.numpy import iinfo  # has 4- and 2-bit integers
from numpy import float32


def saturate(x, dtype):
    """Converts integral floats to the integer `dtype`: NaN becomes 0, and values outside its range become its limits."""
    limits, dtype = iinfo(dtype), np.dtype(dtype).type
    x = np.where(np.isnan(x), 0, np.asarray(x, np.float64))
    inside = np.where((x >= limits.max) | (x <= limits.min), 0, x).astype(dtype)
    return np.where(x >= limits.max, dtype(limits.max), np.where(x <= limits.min, dtype(limits.min), inside)).astype(dtype)


def clamp(x, low, high):
    """C++'s `std::max(std::min(x, high), low)`, in which a NaN bound has no effect."""
    x = np.where(high < x, high, x)
    return np.where(x < low, low, x)


def away(x):
    """C's `roundf`: ties away from zero, in float32."""
    integer = np.trunc(x)
    return np.copysign(integer + np.where(abs(x - integer) >= float32(0.5), np.sign(x), float32(0)), x).astype(float32)
