"""Fewer programs to compile: a sample of many cases in everybody's suite, and all of them in the gate or the full run."""

from collections.abc import Iterable

import pytest


def one_in(
    count: int,
    names: str | tuple[str, ...],
    values: Iterable,
    *,
    first: int = 0,
    others: str = "gate",
    gate: int = 1,
    **options,
):
    """Parametrizes a test over one of every `count` values, from the one numbered `first` on; the others only there.

    Of the others, the gate runs one of every `gate`, and the full run all.
    Where every second value is signed, or traced, `count` is odd: or else the sample would have no others.
    """
    rows = values if isinstance(names, tuple) else ((value,) for value in values)

    def marks(number: int):
        if number % count == first:
            return ()
        left_out = (number - number // count) % gate  # about those in the sample, the others are numbered without gaps
        return pytest.mark.full if left_out else getattr(pytest.mark, others)

    sampled = [pytest.param(*row, marks=marks(number)) for number, row in enumerate(rows)]
    return pytest.mark.parametrize(names, sampled, **options)
