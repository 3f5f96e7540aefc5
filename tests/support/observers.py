"""Observers to test, and batches for them."""

import jax
import numpy as np

from jquant import calibration

BINS = 256
BATCHES, ROWS, CHANNELS = 4, 16, 5
OBSERVERS = {
    "min_max": calibration.min_max(),
    "min_max, axis": calibration.min_max(axis=1),
    "moving_average": calibration.moving_average(0.1),
    "percentile": calibration.percentile(99, num_bins=BINS),
    "percentile, symmetric": calibration.percentile(99, symmetric=True, num_bins=BINS),
    "entropy": calibration.entropy(num_bins=BINS, num_quantized_bins=32),
    "mean_squared_error": calibration.mean_squared_error("INT4", num_bins=BINS),
    "mean_squared_error, symmetric": calibration.mean_squared_error("UINT4", symmetric=True, num_bins=BINS),
}
PERCENTILE = OBSERVERS["percentile"]


def activations(seed: int = 0) -> np.ndarray:
    """Batches that differ in magnitude, with zeros of both signs and subnormal numbers."""
    rng = np.random.default_rng(seed)
    x = rng.standard_t(3, (BATCHES, ROWS, CHANNELS)) * np.array([0.01, 1, 0.1, 3]).reshape(-1, 1, 1)
    x = x.astype(np.float32)
    x[:, 0, :4] = 0, -0.0, 1e-40, -1e-40
    return x


def with_special_values(x: np.ndarray) -> np.ndarray:
    """`x` with NaN and infinities."""
    x = x.copy()
    x[:, 1, :3] = np.nan, np.inf, -np.inf
    return x


def finite(x: np.ndarray) -> np.ndarray:
    return x[np.isfinite(x)]


DISTRIBUTIONS = "symmetric", "positive", "lopsided"


def samples_of(distribution: str) -> np.ndarray:
    x = np.random.default_rng(0).standard_t(3, 3000)
    x = {"symmetric": x, "positive": abs(x), "lopsided": np.where(x > 0, x, x / 8)}[distribution]
    return x.astype(np.float32)


def assert_bits(actual, expected):
    """Compares arrays of float32 as integers: comparisons of floats may take subnormal numbers for zeros."""
    for actual_leaf, expected_leaf in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(actual_leaf).view(np.int32), np.asarray(expected_leaf).view(np.int32))
