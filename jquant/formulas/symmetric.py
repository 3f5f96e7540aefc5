"""Symmetric quantization of slices by their own largest magnitude."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact
from jquant.formulas import affine
from jquant.formulas.extremes import largest_magnitude
from jquant.formulas.scale_and_zero_point import quantization_parameters
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


def quantized(x: jax.Array, axes: Sequence[int], dtype: np.dtype) -> Quantized:
    """`x` in a signed integer type, with a scale for the elements that differ in `axes` alone, of the rank of `x`.

    ``scale = max(abs(x)) / max(dtype)``, so that the smallest integer of the type does not occur. Where that is no normal
    number, all integers are 0, and so is the scale, not 1 as operators return it: scales are multiplied into what is rounded
    later, among which a 1 may be far too large.
    """
    value = exact.numerator(x)
    largest = largest_magnitude(value, axes)
    scale, _ = quantization_parameters(-largest, largest, dtype, symmetric=True, narrow_range=True)
    integers = affine.quantize(value, ScaleZeroPoint(scale, None), dtype)
    scale = jnp.where(largest < scale, np.float32(0), scale)  # no element is below its scale; NaN is not
    return Quantized(integers, scale, None)
