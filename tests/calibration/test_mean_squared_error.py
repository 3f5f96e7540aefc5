"""The observer `mean_squared_error`, against a search in NumPy."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.histograms import observe, wide_counts
from support.observers import DISTRIBUTIONS, OBSERVERS, samples_of
from support.sampling import one_in

from jquant import calibration
from jquant.calibration.histogram import edges
from jquant.reference import linear as reference


def squared_error(x, weight, low, high, dtype, symmetric=False):
    """The sum of the weighted squared errors of quantizing with a range."""
    scale, zero_point = reference.scale_and_zero_point(low, high, dtype, symmetric=symmetric)
    values = reference.dequantize_linear(reference.quantize_linear(x, scale, zero_point, dtype), scale, zero_point)
    return np.sum(weight * (values.astype(np.float64) - x) ** 2)


@one_in(
    7,
    ("distribution", "integers"),
    itertools.product(DISTRIBUTIONS, [("int4", False), ("uint4", True), ("int8", False)]),
)
def test_smallest_error(distribution, integers):
    """No range of a search is better: for the bins of the histogram at all, for the numbers by more than 1 per cent."""
    (dtype, symmetric), x, bins = integers, samples_of(distribution), 4096
    dtype = jnp.dtype(dtype)
    observer = calibration.mean_squared_error(dtype, symmetric=symmetric, num_bins=bins)
    state = observe(observer, [x])
    low, high = map(np.asarray, observer.compute_range(state))
    middles = np.asarray(edges(state.range, bins, np.arange(bins) + 0.5))
    lowest, highest = np.minimum(x.min(), 0), np.maximum(x.max(), 0)
    ranges = [(lowest * i, highest * j) for i in np.linspace(0, 1, 33) for j in np.linspace(0, 1, 33)[1:]]
    if symmetric:
        ranges = [(-max(-lowest, highest) * i, max(-lowest, highest) * i) for i in np.linspace(0, 1, 1025)[1:]]
    # The tolerances are the rounding of float32, and the width of the bins.
    for numbers, weight, tolerance in ((middles, np.array(wide_counts(state)), 1e-5), (x, 1, 0.01)):
        kept = np.broadcast_to(weight, numbers.shape) != 0
        numbers, weight = numbers[kept], np.broadcast_to(weight, numbers.shape)[kept]
        smallest = min(squared_error(numbers, weight, *map(np.float32, bounds), dtype, symmetric) for bounds in ranges)
        assert squared_error(numbers, weight, low, high, dtype, symmetric) <= smallest * (1 + tolerance)
        if symmetric:
            assert low == -high
        elif tolerance == 1e-5:  # the observer's second search found a better range
            assert squared_error(numbers, weight, low, high, dtype) < smallest * (1 - tolerance)


@pytest.mark.parametrize("exponent", [-100, 120])
def test_any_magnitude(exponent):
    """Also magnitudes whose squares exceed float32."""
    observer, x = OBSERVERS["mean_squared_error"], samples_of("lopsided")
    expected = observer.compute_range(observe(observer, [x]))
    actual = observer.compute_range(observe(observer, [np.ldexp(x, exponent).astype(np.float32)]))
    assert_equal(tuple(actual), tuple(np.ldexp(np.asarray(bound), exponent) for bound in expected))
