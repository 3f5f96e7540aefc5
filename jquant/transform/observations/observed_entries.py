"""The entries of a calibration, with the uses of weights that read them."""

from collections.abc import Mapping
from typing import Any

from jquant import calibration
from jquant.transform.observations import observed_uses
from jquant.transform.observations.observed_uses import Use
from jquant.transform.observations.statistics import InputStatistics
from jquant.transform.program.plan import Plan


class ObservedRange(calibration.Range):
    """A range, with the uses of weights that read it: an attribute, which a tree of ranges does not have."""

    readers: tuple[Use, ...] = ()

    def __repr__(self) -> str:
        return repr(calibration.Range(*self))


class ObservedStatistics(InputStatistics):
    """Statistics, and perhaps a range, with the uses of weights that read either."""

    readers: tuple[Use, ...] = ()
    range_readers: tuple[Use, ...] = ()

    def __repr__(self) -> str:
        return repr(InputStatistics(*self))


def with_readers(plan: Plan, observed: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a calibration with the uses that read them, where a weight has several."""
    shared = observed_uses.shared(plan)
    return {name: _with_readers(plan, name, entry, shared) for name, entry in observed.items()}


def _with_readers(plan: Plan, name: str, entry: Any, shared: set[str]) -> Any:
    sites = [site for site in plan.sites.values() if site.parameter in shared]
    of_range = tuple(observed_uses.of(site) for site in sites if site.has_static_input and site.input == name)
    of_statistics = tuple(observed_uses.of(site) for site in sites if site.needs_statistics and site.statistics == name)
    if not of_range and not of_statistics:
        return entry
    if isinstance(entry, InputStatistics):
        statistics = ObservedStatistics(*entry)
        statistics.readers, statistics.range_readers = of_statistics, of_range
        return statistics
    range = ObservedRange(*entry)
    range.readers = of_range
    return range
