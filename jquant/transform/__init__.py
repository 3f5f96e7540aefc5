"""Converts functions to few bits: their products, convolutions and embeddings that have parameters as weights.

    from jquant import transform

    print(transform.sites(apply, params, x))
    calibration = transform.calibrate(apply, params, batches, recipe)
    quantized_apply, quantized_params = transform.quantize(apply, params, recipe, x, calibration=calibration)

Its errors are `TransformError` and, for an argument of the wrong type, `TransformTypeError`. Errors that the function itself
raises are not changed; a note says what it was called with.
"""

from jquant.errors import TransformError, TransformTypeError
from jquant.transform import adapters
from jquant.transform.calibrate import calibrate
from jquant.transform.choosing.mixed_precision import mixed_precision
from jquant.transform.choosing.mixed_result import Assignment, MixedPrecision, SiteChoice
from jquant.transform.listing import Row, Sites, sites
from jquant.transform.observations.statistics import InputStatistics
from jquant.transform.quantization_aware import quantization_aware
from jquant.transform.quantize import QuantizedFunction, quantize
from jquant.transform.recipes.recipe import (
    Activations,
    Recipe,
    Scheme,
    dynamic_int8,
    dynamic_int8_rows,
    gptq_int4,
    int4_by_rows,
    static_int8,
    weight_only_float8,
    weight_only_int4,
    weight_only_int8,
    weight_only_mxfp4,
    weight_only_nvfp4,
)
from jquant.transform.report import Report, SiteReport, report
from jquant.transform.saving.load import load
from jquant.transform.saving.save import save
from jquant.transform.shardings import shardings

__all__ = [
    "Activations",
    "Assignment",
    "InputStatistics",
    "MixedPrecision",
    "QuantizedFunction",
    "Recipe",
    "Report",
    "Row",
    "Scheme",
    "SiteChoice",
    "SiteReport",
    "Sites",
    "TransformError",
    "TransformTypeError",
    "adapters",
    "calibrate",
    "dynamic_int8",
    "dynamic_int8_rows",
    "gptq_int4",
    "int4_by_rows",
    "load",
    "mixed_precision",
    "quantization_aware",
    "quantize",
    "report",
    "save",
    "shardings",
    "sites",
    "static_int8",
    "weight_only_float8",
    "weight_only_int4",
    "weight_only_int8",
    "weight_only_mxfp4",
    "weight_only_nvfp4",
]


def __dir__() -> list[str]:
    return sorted(__all__)
