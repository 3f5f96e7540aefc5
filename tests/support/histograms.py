"""Histograms of the observers in NumPy, and the divergences that `entropy` looks for the least of."""

import jax.numpy as jnp
import numpy as np

from jquant import calibration
from jquant.calibration.histogram import edges

TOLERANCE = 2.0**-22
"""Divergences this close, float32 cannot tell apart: they are sums of numbers whose magnitudes add up to less than 2."""


def observed(observer: calibration.Observer, batches):
    """The state after all of them."""
    state = observer.init(batches[0])
    for batch in batches:
        state = observer.update(state, batch)
    return state


def wide_counts(state: calibration.Histogram) -> list[int]:
    """Python's integers, which have any width."""
    low, high = (np.asarray(words).tolist() for words in state.counts)
    return [one + (other << 32) for one, other in zip(low, high, strict=True)]


def of_counts(counts: list[int], low: float, high: float) -> calibration.Histogram:
    words = tuple(jnp.array([count >> bits & 2**32 - 1 for count in counts], jnp.uint32) for bits in (0, 32))
    return calibration.Histogram(calibration.Range(jnp.float32(low), jnp.float32(high)), words)


def all_edges(state: calibration.Histogram) -> np.ndarray:
    bins = state.counts[0].size
    return np.asarray(edges(state.range, bins, np.arange(bins + 1)))


def divergences(state: calibration.Histogram, quantized: int, thresholds=None) -> list[tuple[float, np.ndarray]]:
    """The ranges of as many bins to each side of zero as `thresholds` says, or all, and their divergences, in float64."""
    counts, at = np.array(wide_counts(state)), all_edges(state)
    zero, found = counts.size // 2, []
    for threshold in range(quantized // 2, zero + 1) if thresholds is None else thresholds:
        start, end = zero - threshold, min(zero + threshold + 1, counts.size)
        inside = counts[start:end]
        p, q = inside.copy(), np.zeros_like(inside)
        p[0] += counts[:start].sum()
        p[-1] += counts[end:].sum()
        width = inside.size // quantized
        for part in range(quantized):
            bins = slice(part * width, (part + 1) * width)
            joined = inside[bins.start : None if part == quantized - 1 else bins.stop].sum()
            q[bins] = joined // max(1, np.count_nonzero(p[bins])) if np.any(p[bins]) else 0
        bounds = np.clip([at[start], at[end]], *state.range)
        found.append((_kl_divergence(_smoothed(p), _smoothed(q)) if np.any(q) else np.inf, bounds))
    return found


def _smoothed(counts: np.ndarray) -> np.ndarray:
    return np.where(counts == 0, 1e-4, counts - 1e-4 * np.mean(counts == 0) / np.mean(counts != 0))


def _kl_divergence(p: np.ndarray, q: np.ndarray) -> float:
    p, q = p / p.sum(), q / q.sum()
    return np.sum(p * np.log(p / q))


def close_to_least(found: list[tuple[float, np.ndarray]]) -> list[np.ndarray]:
    """The ranges whose divergence is the least, or cannot be told from it."""
    least = min(divergence for divergence, _ in found)
    return [bounds for divergence, bounds in found if divergence <= least + TOLERANCE]
