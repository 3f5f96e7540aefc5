"""The best assignments of choices to sites: those that no other assignment beats in both noise and bytes.

A choice adds its noise to that of the other sites, and needs some arrays, each of which is stored once, however many sites
need it. One site after the other, all assignments to the sites so far are extended by each choice, and those that another
one beats are dropped. Of those, only assignments that have stored the same arrays, of those that sites to come may need,
compete with each other. So the result is exact, unless there are more than `_MOST` assignments left: then, of those with
nearly the same bytes, only the one with the least noise stays.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

_MOST, _FEWEST = 8192, 64  # assignments that stay in all, and for each set of arrays


class Choice(NamedTuple):
    """A choice of a site: its number, its noise, and the arrays that it needs."""

    number: int
    noise: float
    needs: frozenset[Hashable]


class Assignments(NamedTuple):
    """Assignments of choices to sites.

    Attributes:
      bytes: how many bytes each needs, ascending.
      noise: the noise of each, descending.
      numbers: the number of the choice of each site, of shape (assignments, sites).
    """

    bytes: np.ndarray
    noise: np.ndarray
    numbers: np.ndarray


def frontier(sites: Sequence[Sequence[Choice]], sizes: Mapping[Hashable, int]) -> Assignments:
    """The best assignments, for arrays of these sizes."""
    order = _neighbours_together(sites)
    num_users = Counter(need for index in order for need in _needs(sites[index]))
    states = {frozenset(): Assignments(np.zeros(1, np.int64), np.zeros(1), np.zeros((1, 0), np.int32))}
    for index in order:
        num_users.subtract(_needs(sites[index]))
        extended: dict[frozenset[Hashable], list[Assignments]] = {}
        for stored, assignments in states.items():
            for choice in sites[index]:
                price = sum(sizes[need] for need in choice.needs - stored)
                needed = frozenset(need for need in stored | choice.needs if num_users[need])
                extended.setdefault(needed, []).append(_extended(assignments, choice, price))
        most = max(_MOST // len(extended), _FEWEST)
        states = {stored: _best(each, most) for stored, each in extended.items()}
    (best,) = states.values()
    return best._replace(numbers=best.numbers[:, np.argsort(order)])


def _needs(choices: Iterable[Choice]) -> set[Hashable]:
    return {need for choice in choices for need in choice.needs}


def _neighbours_together(sites: Sequence[Sequence[Choice]]) -> list[int]:
    """The indices of the sites: those that need the same arrays one after the other, and the largest such group first."""
    groups: list[tuple[set[Hashable], list[int]]] = []
    for index, choices in enumerate(sites):
        needs, members = _needs(choices), [index]
        for group in [group for group in groups if group[0] & needs]:
            groups.remove(group)
            needs, members = needs | group[0], group[1] + members
        groups.append((needs, sorted(members)))
    groups.sort(key=lambda group: (-len(group[1]), group[1]))
    return [index for _, members in groups for index in members]


def _extended(assignments: Assignments, choice: Choice, price: int) -> Assignments:
    column = np.full((len(assignments.bytes), 1), choice.number, np.int32)
    return Assignments(
        bytes=assignments.bytes + price,
        noise=assignments.noise + choice.noise,
        numbers=np.concatenate([assignments.numbers, column], axis=1),
    )


def _best(all_assignments: Sequence[Assignments], most: int) -> Assignments:
    """The assignments that no other one beats or equals, thinned to about `most`."""
    together = Assignments(*map(np.concatenate, zip(*all_assignments, strict=True)))
    order = np.lexsort((together.noise, together.bytes))
    noise = together.noise[order]
    is_best = np.append(True, noise[1:] < np.minimum.accumulate(noise)[:-1])
    best = order[is_best]
    if len(best) > most:
        place = together.bytes[best] - together.bytes[best[0]]
        bucket = place * most // (place[-1] + 1)
        is_last = np.append(bucket[1:] != bucket[:-1], True)
        is_last[0] = True  # the cheapest of all
        best = best[is_last]
    return Assignments(*(each[best] for each in together))
