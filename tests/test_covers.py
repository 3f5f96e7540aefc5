"""`support.covers`: every triple of values is in a cover, which is small."""

import itertools
import math

import pytest
from support.covers import cover, cover_of_triples

SIZES = (3, 2, 2), (2, 3, 4, 2), (8, 5, 4, 4, 3, 3), (1, 7, 1, 4, 2)


def subsets(cases, strength):
    """Which values of so many factors meet in the cases."""
    return {subset for case in cases for subset in itertools.combinations(enumerate(case), strength)}


@pytest.mark.parametrize("strength", [2, 3])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_everything_meets(sizes, strength):
    factors = [*map(range, sizes)]
    covering = cover(*factors, strength=strength)
    assert subsets(covering, strength) == subsets(itertools.product(*factors), strength)
    least = math.prod(sorted(sizes)[-strength:])  # the largest factors alone need as many cases
    assert least <= len(covering) <= 1.4 * least


def test_marks():
    """The gate has the cover, the full run has everything, and the suite has its first cases."""
    factors = "ab", range(3), range(4), range(2), range(2)
    parameters = cover_of_triples(("a", "b", "c", "d", "e"), *factors, suite=4).args[1]
    by_mark = {"suite": [], "gate": [], "full": []}
    for parameter in parameters:
        (mark,) = parameter.marks
        by_mark[mark.name].append(parameter.values)
    assert [*by_mark["suite"], *by_mark["gate"]] == cover(*factors)
    assert len(by_mark["suite"]) == 4
    assert sorted(itertools.chain(*by_mark.values())) == sorted(itertools.product(*factors))
