"""Symmetric quantization of slices by their own largest magnitude."""

from collections.abc import Sequence

import jax
import numpy as np

from jquant.arithmetic import exact
from jquant.formulas import affine
from jquant.formulas.extremes import largest_magnitude
from jquant.formulas.scale_and_zero_point import quantization_parameters
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


def quantized(x: jax.Array, axes: Sequence[int], dtype: np.dtype) -> Quantized:
    """`x` in a signed integer type, with a scale for the elements that differ in `axes` alone, of the rank of `x`.

    ``scale = max(abs(x)) / max(dtype)``, so that the smallest integer of the type does not occur.
    """
    value = exact.numerator(x)
    largest = largest_magnitude(value, axes)
    scale, _ = quantization_parameters(-largest, largest, dtype, symmetric=True, narrow_range=True)
    return Quantized(affine.quantize(value, ScaleZeroPoint(scale, None), dtype), scale, None)
