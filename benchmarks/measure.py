"""Measures calls in alternating rounds."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

TURN_MS = 25


class Times(NamedTuple):
    """Milliseconds in each round: of the first call of a turn, and of those after it, on average."""

    first: np.ndarray
    further: np.ndarray


def measure(
    calls: Mapping[Hashable, Callable[[], Any]],
    rounds: int,
    *,
    seed: int = 0,
    after_round: Callable[[], object] = lambda: None,
) -> dict[Any, Times]:
    """The times of each call in each round.

    In a round each call has its turn, so that whatever else the machine does affects all of them. Their order is shuffled in
    each round, so that no call always follows the same other one. A turn is a first call, which finds in the caches what
    another contestant left, and further calls, which find what this one left: at least one, and as many as fit in `TURN_MS`.
    """
    names, rng = list(calls), np.random.default_rng(seed)
    times = {name: Times(np.empty(rounds), np.empty(rounds)) for name in names}
    for call in calls.values():
        call()
    for index in range(rounds):
        for name in (names[place] for place in rng.permutation(len(names))):
            times[name].first[index] = _milliseconds(calls[name])
            further = [_milliseconds(calls[name])]
            while sum(further) < TURN_MS:
                further.append(_milliseconds(calls[name]))
            times[name].further[index] = np.mean(further)
        after_round()
    return times


def _milliseconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def quartiles(times: np.ndarray) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    low, median, high = np.percentile(times, [25, 50, 75])
    return float(low), float(median), float(high)
