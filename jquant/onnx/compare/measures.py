"""How far the results of two computations are apart."""

import math
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
    """The largest difference in units of the last place; infinite as in `deviation_of`.

    NaN if two elements differ in sign or by more than a factor of 2. They have no common unit: a number near 0 is billions
    of floats away from its negative.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    if (np.isnan(actual) != np.isnan(expected)).any():
        return float("inf")
    differs = (actual != expected) & ~np.isnan(actual)
    if not differs.any():
        return 0.0
    a, b = actual[differs], expected[differs]
    smaller, larger = np.minimum(np.abs(a), np.abs(b)), np.maximum(np.abs(a), np.abs(b))
    if (np.signbit(a) != np.signbit(b)).any() or (smaller < larger / 2).any():
        return float("nan")
    return float(np.abs(_number(a) - _number(b)).max())


def decibels_of(actual: np.ndarray, expected: np.ndarray) -> float:
    """The signal-to-noise ratio in dB: infinite if nothing differs, minus infinity if the largest difference is infinite."""
    if math.isinf(deviation_of(actual, expected)):
        return -math.inf
    a, b = (x.astype(np.float64)[np.isfinite(expected)] for x in (actual, expected))  # the others are equal
    signal, noise = float(np.sum(np.square(b))), float(np.sum(np.square(a - b)))
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


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
