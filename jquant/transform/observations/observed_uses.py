"""Which entry of a calibration belongs to which use of a weight, also in a program for inputs of other sizes.

Uses of one weight are numbered in the order of the program, which may be another one for other sizes: an entry of
`calibrate` has the uses that read it. Those of a calibration by hand belong to the sites of their names.
"""

import collections
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from jquant.errors import TransformError
from jquant.transform.program.plan import Plan, Site
from jquant.transform.program.same_sites import are_in_order


class Use(NamedTuple):
    """A use of a weight that a program uses several times.

    Attributes:
      name, parameter: those of the site.
      weights: how the weights are computed.
      structure, details: how the input is computed, as in a `uses.Trail`.
    """

    name: str
    parameter: str
    weights: str
    structure: str
    details: collections.Counter[Any]


def ranges(name: str, plan: Plan, calibration: Mapping[str, Any]) -> Mapping[str, Any]:
    """A calibration in which the ranges of a plan have the names of its sites. Errors begin with `name`."""
    sites = [site for site in plan.sites.values() if site.has_static_input]
    readers = {key: getattr(each, "range_readers", getattr(each, "readers", ())) for key, each in calibration.items()}
    return _named(name, calibration, readers, sites, {site.name for site in plan.inputs()})


def statistics(name: str, plan: Plan, calibration: Mapping[str, Any]) -> Mapping[str, Any]:
    """A calibration in which the statistics of a plan have the names of its sites. Errors begin with `name`."""
    sites = [site for site in plan.sites.values() if site.needs_statistics]
    readers = {key: getattr(each, "readers", ()) for key, each in calibration.items()}
    return _named(name, calibration, readers, sites, {site.name for site in plan.prepared()})


def _named(
    name: str,
    calibration: Mapping[str, Any],
    readers: Mapping[str, Sequence[Use]],
    sites: Sequence[Site],
    wanted: set[str],
) -> Mapping[str, Any]:
    """A calibration whose entries that have readers are those of the sites of the same uses."""
    known: dict[str, dict[str, tuple[Use, Any]]] = collections.defaultdict(dict)
    for key, uses in readers.items():
        for use in uses:
            known[use.parameter][use.name] = use, calibration[key]
    named = dict(calibration)
    for parameter, entries in known.items():
        using = [of(site) for site in sites if site.parameter == parameter and _is_observed(calibration, readers, site)]
        matched = _matched([use for use, _ in entries.values()], using)
        if matched is None:
            names = ", ".join(use.name for use in using)
            message = f"{name}: calibration was made with inputs of other sizes, for which apply uses {parameter} otherwise"
            raise TransformError(f"{message}: what belongs to {names} is not clear. Calibrate with inputs of these sizes")
        for use, same in zip(using, matched, strict=True):
            if use.name in wanted:
                named[use.name] = entries[same.name][1]
    return named


def _is_observed(calibration: Mapping[str, Any], readers: Mapping[str, Sequence[Use]], site: Site) -> bool:
    """Whether the entry of a site is not one by hand."""
    return site.name not in calibration or bool(readers[site.name])


def shared(plan: Plan) -> set[str]:
    """The parameters that are weights several times, in sites or in float."""
    names = [*(site.parameter for site in plan.sites.values()), *(re.sub(r"#\d+$", "", each.name) for each in plan.floats)]
    return {name for name, count in collections.Counter(names).items() if count > 1}


def of(site: Site) -> Use:
    return Use(site.name, site.parameter, site.weights.text, site.use.structure, site.use.details())


def _matched(known: Sequence[Use], uses: Sequence[Use]) -> Sequence[Use] | None:
    """Which of the known uses these are; None if that is not clear."""
    for key in (lambda use: use.structure, lambda use: (use.structure, use.weights)):
        found = _by_key(list(map(key, known)), list(map(key, uses)))
        if found is not None:
            return [known[index] for index in found]
    by_name = {use.name: use for use in known}
    if all(by_name.get(use.name) == use for use in uses):  # of the same program
        return [by_name[use.name] for use in uses]
    return known if len(known) == len(uses) and are_in_order(known, uses) else None


def _by_key(known: Sequence[Hashable], keys: Sequence[Hashable]) -> list[int] | None:
    """Where each key is among the known ones; None if one is not there, or one is there twice."""
    is_clear = len(set(keys)) == len(keys) and all(known.count(key) == 1 for key in keys)
    return [known.index(key) for key in keys] if is_clear else None
