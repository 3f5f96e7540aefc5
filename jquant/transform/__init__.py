"""Converts functions to int8: their products, convolutions and look-ups that have parameters as weights.

from jquant import transform

print(transform.sites(apply, params, x))
ranges = transform.calibrate(apply, params, batches, recipe)
int8_apply, int8_params = transform.quantized(apply, params, recipe, x, ranges=ranges)
"""

from jquant.transform.calibrate import calibrate
from jquant.transform.listing import Row, Sites, sites
from jquant.transform.quantization_aware import quantization_aware
from jquant.transform.quantized import Int8Function, quantized
from jquant.transform.recipe import Activations, Recipe, Scheme, dynamic_int8, static_int8, weight_only_int8
from jquant.transform.report import Report, SiteReport, report

__all__ = [
    "Activations",
    "Int8Function",
    "Recipe",
    "Report",
    "Row",
    "Scheme",
    "SiteReport",
    "Sites",
    "calibrate",
    "dynamic_int8",
    "quantization_aware",
    "quantized",
    "report",
    "sites",
    "static_int8",
    "weight_only_int8",
]
