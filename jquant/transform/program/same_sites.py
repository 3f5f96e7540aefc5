"""Finds the sites of a program for inputs of some sizes among those of the program for other sizes."""

import collections
import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from jquant.transform.program.plan import Plan, Site


def fitted(expected: Plan, actual: Plan, *, weights: bool = True) -> tuple[Plan, list[str]]:
    """The plan `actual` with the names of the same sites of `expected`, and the names of those that differ.

    A site is the same if it uses the same weights, in the same way, for the same input. Where a weight has several uses that
    differ in what they read, such as the ranges of their inputs, these are told apart by how their inputs are computed: if
    that is not clear, they differ. A site of `expected` may be missing: the program then does not reach it.

    Args:
      expected: the sites that something was made for.
      actual: those of another program of the same function.
      weights: whether the weights must be computed in the same way.
    """
    known, new = _by_use(expected, weights), _by_use(actual, weights)
    pairs: dict[str, Site] = {}
    differing: list[str] = []
    for key, sites in new.items():
        matched = _matched(known.get(key, []), sites)
        if matched is None:
            old, names = ([site.name for site in each] for each in (known.get(key, []), sites))
            differing += [name for name in names if name not in old] if len(names) > len(old) else [*old, *names]
        else:
            pairs.update({site.name: same for site, same in zip(sites, matched, strict=True)})
    differing += [site.name for site in actual.sites.values() if site.name in pairs and not _is_same(site, pairs[site.name])]
    differing += _differing_products(expected, actual)
    if differing:
        return actual, list(dict.fromkeys(differing))
    first_readers: dict[str, str] = {}
    for site in actual.sites.values():
        same = pairs[site.name]
        if site.has_static_input and first_readers.setdefault(same.input, site.input) != site.input:
            differing.append(site.name)
    renamed = {path: _renamed(site, pairs) for path, site in actual.sites.items()}
    products = {
        path: dataclasses.replace(product, inputs=tuple(_name(input, pairs) for input in product.inputs))
        for path, product in actual.products.items()
    }
    return dataclasses.replace(actual, sites=renamed, products=products), differing


def missing(expected: Plan, actual: Plan) -> list[str]:
    """The names of the sites and products of `expected` that a plan with the same names has not."""
    names = {each.name for each in (*actual.sites.values(), *actual.products.values())}
    return [each.name for each in (*expected.sites.values(), *expected.products.values()) if each.name not in names]


def _by_use(plan: Plan, weights: bool) -> dict[Hashable, list[Site]]:
    """The sites by what a number in their names does not tell apart."""
    groups: dict[Hashable, list[Site]] = collections.defaultdict(list)
    for site in plan.sites.values():
        text = site.weights.text if weights else site.weights.leaves
        groups[site.parameter, site.kind, text, site.storage.layout].append(site)
    return groups


def _is_same(site: Site, same: Site) -> bool:
    return (site.storage, site.scheme) == (same.storage, same.scheme)


def _renamed(site: Site, pairs: dict[str, Site]) -> Site:
    same = pairs[site.name]
    input = same.input if site.has_static_input else _name(site.input, pairs)
    return dataclasses.replace(site, name=same.name, stored=same.stored, statistics=same.statistics, input=input)


def _name(input: str, pairs: dict[str, Site]) -> str:
    """The name of the first reader of an input, which may be an operand of a product."""
    return pairs[input].name if input in pairs else input


def _matched(known: Sequence[Site], sites: Sequence[Site]) -> Sequence[Site] | None:
    """Which of the known uses of a weight these are, in their order; None if that is not clear."""
    if len(known) < len(sites):
        return None
    if len({_reads(site) for site in known}) == 1:
        return known[: len(sites)]
    before, after = ([site.use.structure for site in each] for each in (known, sites))
    if len(set(after)) == len(after) and all(before.count(structure) == 1 for structure in after):
        return [known[before.index(structure)] for structure in after]
    both = [[_How(site.use.structure, site.use.details()) for site in each] for each in (known, sites)]
    return known if len(known) == len(sites) and are_in_order(*both) else None


def _reads(site: Site) -> Hashable:
    """What a use of a weight reads that another one may not."""
    input = site.input if site.has_static_input else None
    return site.stored, input, site.statistics if site.needs_statistics else None, site.scheme


class How(Protocol):
    """How the input of a use is computed, as in a `Trail`."""

    @property
    def structure(self) -> str: ...

    @property
    def details(self) -> collections.Counter[Any]: ...


class _How(NamedTuple):
    structure: str
    details: collections.Counter[Any]


def are_in_order(known: Sequence[How], uses: Sequence[How]) -> bool:
    """Whether the uses agree better in this order than if any two of them changed places."""
    agreement = [[(each.details & other.details).total() for other in uses] for each in known]

    def stays(i: int, j: int) -> bool:
        kept, swapped = agreement[i][i] + agreement[j][j], agreement[i][j] + agreement[j][i]
        have_structure = all(known[n].structure == uses[n].structure for n in (i, j))
        return kept > swapped or (kept == swapped and have_structure)

    return all(stays(i, j) for j in range(len(known)) for i in range(j))


def _differing_products(expected: Plan, actual: Plan) -> list[str]:
    """The products of two activations that have other schemes, or perhaps another order where these differ."""
    known, new = ({product.name: product for product in plan.products.values()} for plan in (expected, actual))
    schemes = collections.defaultdict(set)
    for product in known.values():
        schemes[product.parameter].add(product.scheme)

    def is_same(name: str) -> bool:
        if len(schemes[new[name].parameter]) < 2 and name not in known:
            return True  # nothing was made for it
        if name not in known or known[name].scheme != new[name].scheme:
            return False
        return len(schemes[new[name].parameter]) == 1 or known[name].use.structure == new[name].use.structure

    return [name for name in new if not is_same(name)]
