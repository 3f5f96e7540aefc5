"""The observer `percentile`, against its definition in fractions and against NumPy."""

import fractions
import itertools

import numpy as np
import pytest
from support.comparison import assert_equal
from support.histograms import histogram, observe, wide_counts
from support.observers import BINS, OBSERVERS
from support.sampling import one_in

from jquant import calibration


@pytest.mark.filterwarnings("ignore:.*the bins are .* wide")  # of percentile(0), which leaves one bin
@one_in(3, "magnitude", [10, 2**31, 2**50], first=1)
def test_percentile(magnitude):
    """The definition, computed in fractions. Some shares are met exactly."""
    rng = np.random.default_rng(0)
    states = [histogram([int(count) * magnitude for count in rng.integers(0, 3, BINS)], -3.75, 3.9) for _ in range(3)]
    states.append(histogram([magnitude] * BINS, -3.999, 3.999))
    few = min(magnitude, 2**31)  # 99.99999 per cent of these counts cut nothing off the last bin
    states.append(histogram([0] * 10 + [99_999_995 * few] + [0] * 9 + [5 * few] + [0] * (BINS - 21), -3.75, 3.9))
    for decimal in ("0", "50", "90", "99", "99.9", "99.99999", "100"):
        percentile, share = float(decimal), fractions.Fraction(decimal) / 100
        for symmetric in (False, True):
            observer = calibration.percentile(percentile, symmetric=symmetric, num_bins=BINS)
            for state in states:
                counts, bounds = wide_counts(state), [float(bound) for bound in state.range]
                if symmetric:
                    half = BINS // 2
                    folded = [upper + lower for upper, lower in zip(counts[half:], counts[half - 1 :: -1], strict=True)]
                    high = first_reaching(share, folded) / 32
                    low = -high
                else:
                    low, high = (first_reaching(part, counts) / 32 - 4 for part in ((1 - share) / 2, (1 + share) / 2))
                low = max(low, bounds[0])
                expected = np.float32([low, max(low, min(high, bounds[1]))])
                np.testing.assert_array_equal(observer.compute_range(state), expected)


def first_reaching(share: fractions.Fraction, counts: list[int]) -> int:
    """The index of the first bin at which the cumulative count reaches a share of the total."""
    sums = list(itertools.accumulate(counts))
    return next(index for index, total in enumerate(sums) if total >= share * sums[-1])


@pytest.mark.gate
def test_percentile_of_numbers():
    """The true percentile lies in the bin whose lower edge an observer returns."""
    x = np.random.default_rng(0).standard_t(3, 10_000).astype(np.float32)
    for bins in (256, 4096):
        observer = calibration.percentile(99, num_bins=bins)
        width = 2 * 2.0 ** np.frexp(abs(x).max())[1] / bins
        actual = observer.compute_range(observe(observer, [x]))
        for bound, percentile in zip(actual, (0.5, 99.5), strict=True):
            assert bound <= np.percentile(x, percentile, method="inverted_cdf") < bound + width


def test_all_numbers_in_one_bin():
    """If the edge lies below the smallest number, the range is that number: no range is reversed."""
    x = np.full(7, 5.01, np.float32)
    for name in ("percentile", "percentile, symmetric"):
        assert_equal(tuple(OBSERVERS[name].compute_range(observe(OBSERVERS[name], [x]))), (x[0], x[0]))
