"""Alternating rounds, and what is kept of them."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np


def measure(
    calls: Mapping[Hashable, Callable[[], Any]],
    rounds: int,
    *,
    seed: int = 0,
    after_round: Callable[[], object] = lambda: None,
) -> dict[Any, np.ndarray]:
    """Milliseconds of each call in each round.

    In a round each call runs once, so that what else the machine does falls on all of them. Their order is drawn anew
    in each round, so that none always follows the same other.
    """
    names, rng = list(calls), np.random.default_rng(seed)
    times = {name: np.empty(rounds) for name in names}
    for call in calls.values():
        call()
    for index in range(rounds):
        for name in (names[place] for place in rng.permutation(len(names))):
            start = time.perf_counter()
            calls[name]()
            times[name][index] = 1e3 * (time.perf_counter() - start)
        after_round()
    return times


def quartiles(times: np.ndarray) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    low, median, high = np.percentile(times, [25, 50, 75])
    return float(low), float(median), float(high)
