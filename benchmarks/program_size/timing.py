"""What is timed, and how long a call of the network takes."""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise

PHASES = "trace", "lower", "compile"
RUNS = 300  # of which the median counts: a process that has just compiled is slower for some tenths of a second


def run_seconds(run: Callable[[], object]) -> float:
    """The median time of calls in a row, after one that is not counted; `run` returns when the result is there."""
    run()
    clock = [time.perf_counter()]
    for _ in range(RUNS):
        run()
        clock.append(time.perf_counter())
    return statistics.median(end - start for start, end in pairwise(clock))
