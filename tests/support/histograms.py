"""Observers' histograms in NumPy, and the divergences of which `entropy` finds the smallest."""

from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jquant import calibration
from jquant.calibration.histogram import edges

TOLERANCE = 2.0**-22
"""Divergences this close are equal in float32: they are sums of numbers whose magnitudes add up to less than 2."""


def observe(observer: calibration.Observer, batches):
    """The state after all batches."""
    state = observer.init(batches[0])
    for batch in batches:
        state = observer.update(state, batch)
    return state


def wide_counts(state: calibration.Histogram) -> list[int]:
    """The counts as Python's integers, which have any width."""
    low_words, high_words = (np.asarray(words).tolist() for words in state.counts)
    return [low + (high << 32) for low, high in zip(low_words, high_words, strict=True)]


def histogram(counts: list[int], low: float, high: float) -> calibration.Histogram:
    """The histogram with these counts, of numbers from `low` to `high`."""
    words = tuple(jnp.array([count >> bits & 2**32 - 1 for count in counts], jnp.uint32) for bits in (0, 32))
    return calibration.Histogram(range=calibration.Range(jnp.float32(low), jnp.float32(high)), counts=words)


def bin_edges(state: calibration.Histogram) -> np.ndarray:
    bins = state.counts[0].size
    return np.asarray(edges(state.range, bins, np.arange(bins + 1)))


class Candidate(NamedTuple):
    """A range that `entropy` may choose, and its divergence."""

    divergence: float
    bounds: np.ndarray


def candidates(state: calibration.Histogram, quantized: int, thresholds: Iterable[int] | None = None) -> list[Candidate]:
    """The ranges with `thresholds` bins on each side of zero (None: all that are tried), with divergences in float64."""
    counts, lower_edges = np.array(wide_counts(state)), bin_edges(state)
    zero = counts.size // 2
    ranges = []
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
        divergence = _kl_divergence(_smoothed(p), _smoothed(q)) if np.any(q) else np.inf
        ranges.append(Candidate(divergence, np.clip([lower_edges[start], lower_edges[end]], *state.range)))
    return ranges


def _smoothed(counts: np.ndarray) -> np.ndarray:
    return np.where(counts == 0, 1e-4, counts - 1e-4 * np.mean(counts == 0) / np.mean(counts != 0))


def _kl_divergence(p: np.ndarray, q: np.ndarray) -> float:
    p, q = p / p.sum(), q / q.sum()
    return np.sum(p * np.log(p / q))


def best_ranges(candidates: list[Candidate]) -> list[tuple[float, ...]]:
    """The ranges whose divergence is the smallest, or equal to it in float32."""
    smallest = min(candidate.divergence for candidate in candidates)
    return [tuple(candidate.bounds) for candidate in candidates if candidate.divergence <= smallest + TOLERANCE]
