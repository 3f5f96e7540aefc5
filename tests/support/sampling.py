"""Parametrization over a sample of cases in the suite, and over all of them in the gate or the full run."""

from collections.abc import Iterable

import pytest


def one_in(
    count: int,
    names: str | tuple[str, ...],
    values: Iterable,
    *,
    first: int = 0,
    others: str = "gate",
    gate: int = 3,
    **options,
):
    """Parametrizes a test over one in `count` values; the other values have the mark `others`.

    An odd `count` samples both halves where a property alternates from value to value.

    Args:
      count: one value in so many runs in the suite.
      names: the parameter, or parameters.
      values: all values, tuples for several parameters.
      first: the index of the first value in the sample.
      others: the mark of the values outside of the sample, "gate" or "full".
      gate: one in so many of the other values has that mark; the rest is marked "full".
    """
    rows = values if isinstance(names, tuple) else ((value,) for value in values)

    def marks(number: int):
        if number % count == first:
            return ()
        position = number - number // count  # among the others, roughly: without gaps for the values in the sample
        return pytest.mark.full if position % gate else getattr(pytest.mark, others)

    sampled = [pytest.param(*row, marks=marks(number)) for number, row in enumerate(rows)]
    return pytest.mark.parametrize(names, sampled, **options)
