"""Numbers that test rounding to floats of 8, 6 and 4 bits."""

import numpy as np

from jquant.reference import narrow_floats as reference

FLOATS_OF_8_BITS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


def every(dtype) -> np.ndarray:
    """Every value of a 16-bit float type."""
    return np.arange(2**16, dtype=np.uint16).view(dtype)


def ties(name: str) -> np.ndarray:
    """Ties between neighbours, up to the one beyond the largest number, the float32 next to each tie, and the numbers."""
    numbers = reference.table(name).numbers
    middles = ((numbers[:-1] + numbers[1:]) / 2).astype(np.float32)
    next_to_middles = [np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)]
    magnitudes = np.concatenate([middles, *next_to_middles, numbers.astype(np.float32)])
    return np.concatenate([magnitudes, -magnitudes])
