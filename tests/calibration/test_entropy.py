"""The observer `entropy`, against a search in float64 in NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.comparison import assert_equal
from support.histograms import best_ranges, candidates, histogram, observe, wide_counts
from support.observers import BINS, DISTRIBUTIONS, OBSERVERS, samples_of
from support.sampling import one_in

from jquant import calibration


@one_in(9, ("distribution", "quantized"), itertools.product(DISTRIBUTIONS, [32, 100, BINS]), first=1)
def test_smallest_divergence(distribution, quantized):
    """The divergence is the smallest, or equal to it in float32."""
    observer = calibration.entropy(num_bins=BINS, num_quantized_bins=quantized)
    state = observe(observer, [samples_of(distribution)])
    assert tuple(observer.compute_range(state)) in best_ranges(candidates(state, quantized))


@pytest.mark.gate
def test_few_numbers():
    """Some ranges hold no numbers, or all their quantized bins are 0."""
    rng, bins, count = np.random.default_rng(0), 16, 100
    counts = rng.integers(0, 50, (count, bins)) ** rng.integers(0, 4, (count, 1))
    counts[rng.random(counts.shape) < rng.random((count, 1))] = 0
    counts[:, 0] += 1
    states = [histogram(each.tolist(), -3.9, 3.9) for each in counts]
    compute_range = jax.jit(jax.vmap(calibration.entropy(num_bins=bins, num_quantized_bins=2).compute_range))
    ranges = compute_range(jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))
    for state, *bounds in zip(states, *map(np.asarray, ranges), strict=True):
        assert tuple(bounds) in best_ranges(candidates(state, 2))


@pytest.mark.gate
@pytest.mark.parametrize(("bins", "quantized"), [(4096, 66), (8192, 62), (8192, 200)])
def test_many_bins(bins, quantized):
    """The same search in two steps: every n-th range, and those around the best of these."""
    step, least, zero = bins // 2048, quantized // 2, bins // 2
    observer = calibration.entropy(num_bins=bins, num_quantized_bins=quantized)
    state = observe(observer, [samples_of("symmetric")])

    def best(thresholds):
        ranges = candidates(state, quantized, thresholds)
        index = np.argmin([candidate.divergence for candidate in ranges])
        return thresholds[index], ranges[index].bounds

    coarse, _ = best(range(least + (zero - least) % step, zero + 1, step))
    fine, expected = best(range(max(least, coarse - step + 1), min(zero, coarse + step - 1) + 1))
    assert fine != coarse  # otherwise the test would not notice if the second step were missing
    assert_equal(tuple(observer.compute_range(state)), tuple(expected))


@pytest.mark.parametrize(
    ("bins", "quantized", "lengths"),
    [(256, 128, [65]), (2048, 128, [961]), (4096, 128, [993, 3]), (65536, 128, [1023, 63]), (65536, 65536, [1, 63])],
)
def test_about_a_thousand_ranges_are_tried(bins, quantized, lengths):
    """For any number of bins. The time of each range is proportional to that number."""
    observer = calibration.entropy(num_bins=bins, num_quantized_bins=quantized)
    program = jax.make_jaxpr(observer.compute_range)(observer.init())
    assert list(loop_lengths(program.jaxpr)) == [bins, *lengths]  # the first loop sums the counts


def loop_lengths(jaxpr):
    """The lengths of the loops that are not inside another loop."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation.params["length"]
        elif "jaxpr" in equation.params:
            yield from loop_lengths(equation.params["jaxpr"])


@pytest.mark.gate
def test_many_numbers():
    """All counts are halved until their sum is an int32."""
    state = observe(OBSERVERS["entropy"], [samples_of("symmetric")])
    many = histogram([count << 40 for count in wide_counts(state)], *map(float, state.range))
    few = histogram([count << 19 for count in wide_counts(state)], *map(float, state.range))
    assert sum(wide_counts(few)) < 2**31 <= 2 * sum(wide_counts(few))
    compute_range = OBSERVERS["entropy"].compute_range
    assert_equal(compute_range(many), compute_range(few))
