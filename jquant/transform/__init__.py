"""Converts functions to int8: their products, convolutions and embeddings that have parameters as weights.

    from jquant import transform

    print(transform.sites(apply, params, x))
    calibration = transform.calibrate(apply, params, batches, recipe)
    quantized_apply, quantized_params = transform.quantize(apply, params, recipe, x, calibration=calibration)

Its errors are `TransformError` and, for an argument of the wrong type, `TransformTypeError`. Errors that the function itself
raises are not changed.
"""

from jquant.errors import TransformError, TransformTypeError
from jquant.transform.calibrate import calibrate
from jquant.transform.listing import Row, Sites, sites
from jquant.transform.quantization_aware import quantization_aware
from jquant.transform.quantize import QuantizedFunction, quantize
from jquant.transform.recipe import Activations, Recipe, Scheme, dynamic_int8, static_int8, weight_only_int8
from jquant.transform.report import Report, SiteReport, report

__all__ = [
    "Activations",
    "QuantizedFunction",
    "Recipe",
    "Report",
    "Row",
    "Scheme",
    "SiteReport",
    "Sites",
    "TransformError",
    "TransformTypeError",
    "calibrate",
    "dynamic_int8",
    "quantization_aware",
    "quantize",
    "report",
    "sites",
    "static_int8",
    "weight_only_int8",
]


def __dir__() -> list[str]:
    return sorted(__all__)
