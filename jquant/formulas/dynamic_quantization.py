"""Quantization by the range of the values themselves."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact, rounding
from jquant.formulas import affine
from jquant.formulas.extremes import range_with_zero
from jquant.formulas.scale_and_zero_point import quantization_parameters
from jquant.quantized_tensor import ScaleZeroPoint
from jquant.results import DynamicQuantizeOutput


def quantize(
    input: jax.Array, where: jax.Array | None, axes: Sequence[int] | None, symmetric: bool, dtype: np.dtype
) -> DynamicQuantizeOutput:
    """The formula of `jquant.dynamic_quantize_linear`."""
    x = exact.numerator(input)
    counted = x if where is None else jnp.where(where, x, jnp.zeros_like(x))
    low, high = range_with_zero(counted, axes)
    if symmetric:
        parameters = quantization_parameters(low, high, dtype, symmetric=True, narrow_range=True)
    else:
        parameters = _asymmetric(low, high, dtype, by_row=axes is not None)
    assert parameters.zero_point is not None  # both have one
    return DynamicQuantizeOutput(affine.quantize(x, parameters, dtype), parameters.scale, parameters.zero_point)


def _asymmetric(low: jax.Array, high: jax.Array, dtype: np.dtype, *, by_row: bool) -> ScaleZeroPoint:
    limits = jnp.iinfo(dtype)
    width = exact.difference(high, low)
    scale = exact.quotient(width, jnp.float32(limits.max - limits.min))
    # A single range is as in ONNX; a range of rows whose scale is not a normal number counts as one of zeros.
    empty = scale < jnp.finfo(jnp.float32).tiny if by_row else width == 0
    scale = jnp.where(empty, jnp.float32(1), scale)
    offset = exact.difference(jnp.float32(limits.min), exact.quotient(low, scale))
    if by_row:
        offset = jnp.where(empty, jnp.float32(limits.min), offset)
    return ScaleZeroPoint(scale, rounding.nearest_integer(offset, None, dtype))
