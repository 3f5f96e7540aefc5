"""Numbers that are hard to round to floats of 8, 6 and 4 bits."""

import numpy as np

from jquant.reference import narrow_floats as reference

FLOATS_OF_8_BITS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


def every(dtype) -> np.ndarray:
    """All numbers of 16 bits."""
    return np.arange(2**16, dtype=np.uint16).view(dtype)


def ties(name: str) -> np.ndarray:
    """Halfway between neighbours, the largest number and what would follow it among them, and the floats beside them."""
    numbers = reference.table(name).numbers
    middle = ((numbers[:-1] + numbers[1:]) / 2).astype(np.float32)
    beside = [np.nextafter(middle, np.float32(side)) for side in (-np.inf, np.inf)]
    found = np.concatenate([middle, *beside, numbers.astype(np.float32)])
    return np.concatenate([found, -found])
