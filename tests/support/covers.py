"""Samples of the combinations of several factors, in which the values of each three factors meet in every way."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest


def cover(*factors: Sequence, strength: int = 3) -> list[tuple]:
    """Combinations of one value of each factor, among which is every combination of the values of `strength` factors.

    The next combination is the first of those that have the most that is new: so the first ones have most of it.
    """
    combinations = np.array([*itertools.product(*map(range, map(len, factors)))])
    parts = _parts(combinations, [*map(len, factors)], strength)
    is_new, chosen = np.ones(parts.max() + 1, bool), []
    while (news := is_new[parts].sum(1)).any():
        best = int(news.argmax())
        is_new[parts[best]] = False
        chosen.append(tuple(factor[place] for factor, place in zip(factors, combinations[best], strict=True)))
    return chosen


def cover_of_triples(names: tuple[str, ...], *factors: Sequence, suite: int):
    """Parametrizes a test over a cover of all triples in the gate, and over all combinations in the full run.

    The suite has the first `suite` cases of the cover.
    """
    covering = cover(*factors)
    marks = {number: pytest.mark.suite if number < suite else pytest.mark.gate for number in range(len(covering))}
    chosen = [pytest.param(*case, marks=marks[number]) for number, case in enumerate(covering)]
    others = (case for case in itertools.product(*factors) if case not in covering)
    return pytest.mark.parametrize(names, [*chosen, *(pytest.param(*case, marks=pytest.mark.full) for case in others)])


def _parts(combinations: np.ndarray, sizes: list[int], strength: int) -> np.ndarray:
    """For each combination, a number for each combination of `strength` of its values."""
    numbers, first = [], 0
    for axes in itertools.combinations(range(len(sizes)), strength):
        own = [sizes[axis] for axis in axes]
        numbers.append(first + np.ravel_multi_index([*combinations[:, axes].T], own))
        first += math.prod(own)
    return np.stack(numbers, 1)
