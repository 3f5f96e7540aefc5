"""Warnings of histograms whose bins are too wide for the range that an observer chose.

The bins divide ``[-2**k, 2**k)``, and one number that is much larger than the others widens them all. An observer is a pure
function, which may be traced: a warning is possible only where the state is known.
"""

import contextlib
import contextvars
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np

_SUBJECT: contextvars.ContextVar[str] = contextvars.ContextVar("subject", default="")
_NARROWEST = float(np.finfo(np.float32).tiny)
FINEST = 65_536  # the most bins that an observer can have


class Chosen(NamedTuple):
    """What an observer has seen, and the range that it chose, in NumPy.

    Attributes:
      min: the smallest number seen.
      max: the largest number seen.
      counts: how many numbers each bin has.
      low: where the range begins.
      high: where it ends.
    """

    min: float
    max: float
    counts: np.ndarray
    low: float
    high: float

    @property
    def bin_width(self) -> float:
        exponent = math.frexp(max(abs(self.min), abs(self.max)))[1]
        return 2.0 ** (exponent + 1) / self.counts.size

    @property
    def range_width(self) -> float:
        """Of the range with 0, which every scale and zero point represent."""
        return max(self.high, 0) - min(self.low, 0)

    @property
    def cuts(self) -> bool:
        """Whether some of the numbers lie outside."""
        return self.min < self.low or self.high < self.max


Check = Callable[[Chosen], str | None]


@contextlib.contextmanager
def warnings_of(subject: str) -> Iterator[None]:
    """Within it, warnings begin with the name of what was observed."""
    token = _SUBJECT.set(subject)
    try:
        yield
    finally:
        _SUBJECT.reset(token)


def warn(name: str, state: Any, range: Any, check: Check) -> None:
    """Says what is wrong with a range, according to `check`, where the state and the range are known."""
    leaves = jax.tree.leaves((state, range))
    if not all(map(_is_known, leaves)):
        return
    low_words, high_words = (np.asarray(words).astype(np.uint64) for words in state.counts)
    counts = low_words | high_words << np.uint64(32)
    found = Chosen(float(state.range.min), float(state.range.max), counts, float(range.min), float(range.max))
    if not counts.any() or found.bin_width < _NARROWEST or not found.cuts:
        return  # no number is seen, or cut off; or all are so small that the bins could not be narrower
    reason = check(found)
    if reason is None:
        return
    outliers = "leave the largest numbers out of the batches"
    remedy = outliers if counts.size == FINEST else f"take more bins (num_bins is {counts.size}), or {outliers}"
    subject = f"{_SUBJECT.get()}: " if _SUBJECT.get() else ""
    bins = f"the bins are {found.bin_width:.4g} wide, because the numbers go from {found.min:.4g} to {found.max:.4g}"
    coarse = f"that is too coarse for the range from {found.low:.4g} to {found.high:.4g}: {reason}"
    warnings.warn(f"{subject}{name}: {bins}; {coarse}; {remedy}", UserWarning, stacklevel=_level_of_the_caller())


def _is_known(leaf: Any) -> bool:
    if isinstance(leaf, jax.core.Tracer):
        return False
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated


def _level_of_the_caller() -> int:
    """The `stacklevel` for `warn` of the first frame outside of the package."""
    frame, level = sys._getframe(1), 0
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith("jquant."):
        frame, level = frame.f_back, level + 1
    return level + 1 if frame is not None else 2
