"""The histogram of the observers, against `numpy.histogram` of all numbers."""

import itertools

import numpy as np
from support.histograms import bin_edges, histogram, observe, wide_counts
from support.observers import BINS, PERCENTILE

from jquant.cases import samples


def test_bins_and_edges():
    """At the exponent of all numbers. Powers of two, which begin a bin, and the numbers next to them are among these."""
    rng = np.random.default_rng(0)
    powers = np.ldexp(np.float32(1), np.arange(-140, 6)).astype(np.float32)
    for exponent in (-130, -100, -3, 0, 5, 127):
        near = np.concatenate([powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(np.inf))])
        near = np.concatenate([near, -near])
        x = np.ldexp(rng.uniform(-1, 1, 400), exponent).astype(np.float32)
        x = np.append(x, near[abs(near) < np.ldexp(1.0, exponent)])
        x = np.concatenate([x, np.float32([0, -0.0]), np.ldexp(np.float32([1, -1]), exponent)]).astype(np.float32)
        x = np.where(samples.is_subnormal(x), 0, x)
        state = observe(PERCENTILE, [np.resize(x, 2000)])
        k = max(np.frexp(abs(x).max() or 1e-38)[1], -126 + 8)
        end = np.ldexp(1.0, k)
        expected, expected_edges = np.histogram(np.resize(x, 2000).astype(np.float64), BINS, (-end, end))
        assert wide_counts(state) == expected.tolist()
        with np.errstate(over="ignore"):  # of the ends, 2.0**128
            np.testing.assert_array_equal(bin_edges(state), expected_edges.astype(np.float32))


def test_bins_join():
    """When the magnitude grows from the smallest to the largest float32, in any order of the batches."""
    x = np.float32([[2e-38, 0], [-1, 1], [3e38, -2e38], [0, 1e-20]])
    expected, _ = np.histogram(x.astype(np.float64), BINS, (-(2.0**128), 2.0**128))
    for batches in itertools.permutations(x):
        assert wide_counts(observe(PERCENTILE, batches)) == expected.tolist()


def test_counts_of_64_bits():
    counts = [7 * 2**30 + index**5 for index in range(BINS)]
    index = int((0.9 + 1) * BINS / 2)
    counts[index] = 2**32 - 8
    state = histogram(counts, -0.9, 0.9)
    same = PERCENTILE.update(state, np.full(16, 0.9, np.float32))
    assert wide_counts(same) == [count + 16 * (number == index) for number, count in enumerate(counts)]
    grown = PERCENTILE.update(state, np.full(16, 3.9, np.float32))
    joined = [0] * 96 + [sum(counts[start : start + 4]) for start in range(0, BINS, 4)] + [0] * 96
    joined[int((3.9 + 4) * BINS / 8)] += 16
    assert wide_counts(grown) == joined
    assert max(joined) > 2**34
