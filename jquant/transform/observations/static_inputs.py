"""The scales and zero points of static inputs, from the ranges that calibration observed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jquant.errors import TransformError, TransformTypeError, shown
from jquant.operators.scale_and_zero_point import scale_and_zero_point
from jquant.quantized_tensor import ScaleZeroPoint
from jquant.transform.observations import observed_uses
from jquant.transform.observations.statistics import entry, range_of, real_numbers
from jquant.transform.program.parameters import described
from jquant.transform.program.plan import Plan, Site


def static_inputs(name: str, plan: Plan, calibration: Mapping[str, Any] | None) -> dict[str, ScaleZeroPoint]:
    """The scale and zero point of each static input, by the name of the site. Errors begin with `name`."""
    sites = plan.inputs()
    if calibration is not None and not isinstance(calibration, Mapping):
        wanted = "it must be what transform.calibrate returned, a mapping from site names to ranges"
        raise TransformTypeError(f"{name}: calibration is {described(calibration)}; {wanted}")
    if sites and calibration is None:
        message = f"the recipe has static inputs, such as that of {sites[0].name}, and these need calibration="
        raise TransformError(f"{name}: {message}: transform.calibrate observes them")
    entries = observed_uses.ranges(name, plan, calibration or {})
    return {site.name: _static_input(name, plan, site, entries) for site in sites}


def _static_input(name: str, plan: Plan, site: Site, calibration: Mapping[str, Any]) -> ScaleZeroPoint:
    where = f"{name}: calibration[{site.name!r}], of the input of that site,"
    range = range_of(entry(where, calibration, site.name))
    try:
        low, high = map(real_numbers, range or ())
    except (TypeError, ValueError, OverflowError) as error:
        raise TransformTypeError(f"{where} is {shown(range)}; it must be two numbers, like a calibration.Range") from error
    if low.shape != plan.sizes(site) or high.shape != low.shape:
        raise TransformError(f"{where} has shape {low.shape}; it must be {plan.sizes(site)}, one range per layer")
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise TransformError(f"{where} is not finite: from {low} to {high}")
    if not (low <= high).all():
        raise TransformError(f"{where} has a maximum below its minimum: from {low} to {high}")
    symmetric = site.scheme.is_symmetric
    return scale_and_zero_point(low, high, site.scheme.activation_type, symmetric=symmetric, narrow_range=symmetric)
