"""Converts functions to int8: their products, convolutions and look-ups that have parameters as weights.

from jquant import transform

print(transform.sites(apply, params, x))
ranges = transform.calibrate(apply, params, batches, recipe)
int8_apply, int8_params = transform.quantized(apply, params, recipe, x, ranges=ranges)
"""

from jquant.transform.calibrate import calibrate as calibrate
from jquant.transform.listing import Row as Row
from jquant.transform.listing import Sites as Sites
from jquant.transform.listing import sites as sites
from jquant.transform.quantization_aware import quantization_aware as quantization_aware
from jquant.transform.quantized import Int8Function as Int8Function
from jquant.transform.quantized import quantized as quantized
from jquant.transform.recipe import Activations as Activations
from jquant.transform.recipe import Recipe as Recipe
from jquant.transform.recipe import Scheme as Scheme
from jquant.transform.recipe import dynamic_int8 as dynamic_int8
from jquant.transform.recipe import static_int8 as static_int8
from jquant.transform.recipe import weight_only_int8 as weight_only_int8
from jquant.transform.report import Report as Report
from jquant.transform.report import SiteReport as SiteReport
from jquant.transform.report import report as report
