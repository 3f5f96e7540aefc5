"""Whether calibration saw numbers at the sites that tell anything of their inputs: finite ones, and not only zeros."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from jquant.calibration import Histogram, Range
from jquant.calibration.coarse import caller_stacklevel
from jquant.errors import TransformError
from jquant.transform.observations.statistics import Sums


def require_numbers(name: str, observed: Mapping[str, Any]) -> None:
    """Asserts that finite numbers reached all static inputs: each layer of a site. Errors begin with `name`.

    `observed` has the final states of their observers, by the name of the site.
    """
    empty = []
    for site, state in observed.items():
        low, high = _extremes(state)
        empty += _layers(site, low > high)
    if empty:
        reason = "are there only NaN or infinities in the batches, or no rows?"
        raise TransformError(f"{name}: no finite number reached {', '.join(empty)}: {reason}")


def warn_of_zeros(name: str, observed: Mapping[str, Any], sums: Mapping[str, Sums]) -> None:
    """Warns, once, of all sites that nothing but zeros reached: static inputs, and those of prepared weights."""
    zero = []
    for site, state in observed.items():
        low, high = _extremes(state)
        zero += _layers(site, (low == 0) & (high == 0))
    for site, of_site in sums.items():
        zero += _layers(site, (np.asarray(of_site.largest) == 0).all(-1))
    if zero:
        message = f"{name}: nothing but zeros reached {', '.join(dict.fromkeys(zero))}"
        reason = "are these inputs like those of the quantized function? A range of [0, 0] has the scale 1"
        warnings.warn(f"{message}: {reason}", UserWarning, stacklevel=caller_stacklevel())


def _extremes(state: Range | Histogram) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest finite number of each layer that an observer saw; [inf, -inf] if there was none."""
    low, high = state.range if isinstance(state, Histogram) else state
    return np.asarray(low), np.asarray(high)


def _layers(site: str, which: np.ndarray) -> list[str]:
    """The name of a site with the indices of each of these layers; the name alone if its weights are not stacked."""
    return [f"{site}{index.tolist() if index.size else ''}" for index in np.argwhere(which)]
