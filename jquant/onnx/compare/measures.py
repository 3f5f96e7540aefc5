"""How far the results of two computations are apart."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike


def arrays(constants: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in constants.items()}


def is_integer(array: np.ndarray) -> bool:
    return array.dtype == np.bool_ or jnp.issubdtype(array.dtype, jnp.integer)


def deviation_of(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest absolute difference; infinite if the shapes differ, or if only one of two elements is NaN."""
    if actual.shape != expected.shape:
        return float("inf")
    if not actual.size:
        return 0.0
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = actual.astype(wide), expected.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        deviations = np.where(same, 0, np.abs(a - b))
    return float("inf") if np.isnan(deviations).any() else float(deviations.max())


def ulps_of(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference in units of the last place; infinite as in `deviation_of`."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    if not actual.size:
        return 0.0
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    steps = np.where(same, 0, np.abs(_number(actual) - _number(expected)))
    is_lost = np.isnan(actual) != np.isnan(expected)
    return float("inf") if is_lost.any() else float(steps.max())


def _number(x: np.ndarray) -> np.ndarray:
    """The place of each float among all floats of its type, counted from 0."""
    bits = np.ascontiguousarray(x).view(np.dtype(f"i{x.dtype.itemsize}")).astype(np.int64)
    magnitude = (bits & ((1 << (8 * x.dtype.itemsize - 1)) - 1)).astype(np.float64)
    return np.where(bits < 0, -magnitude, magnitude)


def same_argmax(actual: np.ndarray, expected: np.ndarray) -> float:
    """The share of positions at which the largest element of the last axis is the same; 0 if the shapes differ."""
    if actual.shape != expected.shape:
        return 0.0
    if not expected.size or not expected.ndim:
        return 1.0
    return float(np.mean(np.argmax(actual, -1) == np.argmax(expected, -1)))
