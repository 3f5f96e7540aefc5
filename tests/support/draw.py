"""Parameters and inputs of networks, drawn at random."""

from typing import Any

import jax
import numpy as np

from jquant import transform
from jquant.calibration import Range


def calibrated(low: float, high: float, *layers: int, channels: int = 16) -> transform.InputStatistics:
    """A range, and statistics of so many channels that differ; the same for each layer."""
    largest = np.linspace(0.5, 8, channels, dtype=np.float32)
    observed = transform.InputStatistics(
        range=Range(np.float32(low), np.float32(high)),
        products=np.diag(largest * largest),
        largest=largest,
        mean=largest * np.float32(0.25),
    )
    return jax.tree.map(lambda array: np.broadcast_to(array, (*layers, *array.shape)), observed)


class Draw:
    """Draws parameters and inputs of networks.

    With `exact`, they are small integers, and each slice of weights has its largest at 127: sums of floats are exact in any
    order, and weights that are quantized and dequantized are unchanged.
    """

    def __init__(self, seed: int, *, exact: bool = False):
        self._random = np.random.default_rng(seed)
        self.exact = exact

    def weights(self, *shape: int, dtype: Any = np.float32, layers: int = 0) -> np.ndarray:
        """Weights, the first `layers` dimensions of which are stacked over layers."""
        if not self.exact:
            spread = 2.0 ** self._random.integers(-2, 3, shape[-1])  # channels differ
            return (self._random.normal(size=shape) * spread).astype(dtype)
        values = self._random.integers(-100, 101, shape)
        for axis in range(layers, len(shape)):
            first = (slice(None),) * axis + (0,)
            values[first] = 127 * self._random.choice([-1, 1], values[first].shape)
        return values.astype(dtype)

    def small(self, *shape: int) -> np.ndarray:
        """-1, 0 and 1; the first row and column are 0."""
        values = self._random.integers(-1, 2, shape).astype(np.float32)
        values[0] = values[:, 0] = 0
        return values

    def input(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        if self.exact:
            return self._random.integers(-7, 8, shape).astype(dtype)
        return self._random.normal(size=shape).astype(dtype)

    def indices(self, *shape: int, below: int) -> np.ndarray:
        return self._random.integers(0, below, shape).astype(np.int32)
