"""Finds the ranges to quantize in data, with observers of a stream of batches.

An observer is three pure functions: ``init``, ``update`` and ``compute_range``. Its state is a pytree of arrays.

    observer = jquant.calibration.percentile(99.99)
    state = observer.init()
    for batch in batches:
        state = observer.update(state, batch)
    scale, zero_point = jquant.scale_and_zero_point(*observer.compute_range(state), "INT8")

`calibrate` does this for all activations of a network.
"""

from jquant.calibration.calibrate import calibrate
from jquant.calibration.entropy import entropy
from jquant.calibration.histogram import Histogram
from jquant.calibration.mean_squared_error import mean_squared_error
from jquant.calibration.min_max import min_max, moving_average
from jquant.calibration.observer import Observer, Range
from jquant.calibration.percentile import percentile

__all__ = [
    "Histogram",
    "Observer",
    "Range",
    "calibrate",
    "entropy",
    "mean_squared_error",
    "min_max",
    "moving_average",
    "percentile",
]


def __dir__() -> list[str]:
    return sorted(__all__)
