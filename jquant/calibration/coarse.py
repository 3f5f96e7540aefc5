"""Warnings about histograms whose bins are too wide for the range that an observer chose.

The bins divide ``[-2**k, 2**k)``, and one number that is much larger than the others widens them all. An observer is a pure
function, which may be traced: a warning is possible only if the values of the state are known.
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
_NARROWEST_BIN = float(np.finfo(np.float32).tiny)
MOST_BINS = 65_536  # that an observer can have


class ChosenRange(NamedTuple):
    """The range that an observer chose, and the histogram that it chose it from, in NumPy.

    Attributes:
      min, max: the smallest and the largest number in the histogram.
      counts: how many numbers each bin has.
      low, high: the ends of the range.
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
        """The width of the range, widened to include 0, as a scale and a zero point need it."""
        return max(self.high, 0) - min(self.low, 0)

    @property
    def is_cut(self) -> bool:
        """Whether some of the numbers lie outside the range."""
        return self.min < self.low or self.high < self.max


Check = Callable[[ChosenRange], str | None]
"""Why the bins are too wide for a range; None if they are not."""


@contextlib.contextmanager
def warnings_about(subject: str) -> Iterator[None]:
    """Within it, warnings begin with `subject`, which names the activation or the site that is observed."""
    token = _SUBJECT.set(subject)
    try:
        yield
    finally:
        _SUBJECT.reset(token)


def warn(name: str, state: Any, range: Any, check: Check) -> None:
    """Warns of what `check` finds wrong with a range, if the values of the state and the range are known."""
    leaves = jax.tree.leaves((state, range))
    if not all(map(_is_known, leaves)):
        return
    low_words, high_words = (np.asarray(words).astype(np.uint64) for words in state.counts)
    counts = low_words | high_words << np.uint64(32)
    chosen = ChosenRange(
        min=float(state.range.min),
        max=float(state.range.max),
        counts=counts,
        low=float(range.min),
        high=float(range.max),
    )
    if not counts.any() or chosen.bin_width < _NARROWEST_BIN or not chosen.is_cut:
        return  # no number was seen, or cut off; or all are so small that the bins could not be narrower
    reason = check(chosen)
    if reason is None:
        return
    outliers = "leave the largest numbers out of the batches"
    remedy = outliers if counts.size == MOST_BINS else f"take more bins (num_bins is {counts.size}), or {outliers}"
    subject = f"{_SUBJECT.get()}: " if _SUBJECT.get() else ""
    bins = f"the bins are {chosen.bin_width:.4g} wide, because the numbers go from {chosen.min:.4g} to {chosen.max:.4g}"
    coarse = f"that is too coarse for the range from {chosen.low:.4g} to {chosen.high:.4g}: {reason}"
    warnings.warn(f"{subject}{name}: {bins}; {coarse}; {remedy}", UserWarning, stacklevel=caller_stacklevel())


def _is_known(leaf: Any) -> bool:
    """Whether the values of an array can be read: it is not traced, and this process has all of it."""
    if isinstance(leaf, jax.core.Tracer):
        return False
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated


def caller_stacklevel() -> int:
    """The `stacklevel`, for the function that calls this, of the first frame outside of the package."""
    frame, level = sys._getframe(1), 0
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith("jquant."):
        frame, level = frame.f_back, level + 1
    return level + 1 if frame is not None else 2
