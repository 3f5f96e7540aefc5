"""Alternating rounds, and what is kept of them."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Times(NamedTuple):
    """Milliseconds in each round: of the first call, and of the second, which finds in the caches what that left."""

    first: np.ndarray
    second: np.ndarray


def measure(
    calls: Mapping[Hashable, Callable[[], Any]],
    rounds: int,
    *,
    seed: int = 0,
    after_round: Callable[[], object] = lambda: None,
) -> dict[Any, Times]:
    """The times of each call in each round.

    In a round each call runs, twice in a row, so that what else the machine does falls on all of them. Their order is
    drawn anew in each round, so that none always follows the same other.
    """
    names, rng = list(calls), np.random.default_rng(seed)
    times = {name: Times(np.empty(rounds), np.empty(rounds)) for name in names}
    for call in calls.values():
        call()
    for index in range(rounds):
        for name in (names[place] for place in rng.permutation(len(names))):
            for turn in times[name]:
                start = time.perf_counter()
                calls[name]()
                turn[index] = 1e3 * (time.perf_counter() - start)
        after_round()
    return times


def quartiles(times: np.ndarray) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    low, median, high = np.percentile(times, [25, 50, 75])
    return float(low), float(median), float(high)
