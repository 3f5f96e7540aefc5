"""Quantization by the range of the values themselves, by the library."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jquant.kernels.native.shared_library import DYNAMIC_QUANTIZE, require
from jquant.results import DynamicQuantizeOutput

_FLOATS = frozenset(map(np.dtype, (np.float32, np.float16, jnp.bfloat16)))


def quantize(x: jax.Array, axes: tuple[int, ...], symmetric: bool, dtype: np.dtype, by_row: bool) -> DynamicQuantizeOutput:
    """`formulas.dynamic_quantization.quantize` along `axes`, which count from the end.

    Args:
      by_row: whether the scales and the zero points keep these axes, with a size of 1.

    Raises:
      NotImplementedError: the library cannot be used; the axes are not the last ones; or sizes are symbolic.
    """
    function = require(DYNAMIC_QUANTIZE, *x.shape)
    count = len(axes)
    if sorted(axes) != list(range(-count, 0)) or x.dtype not in _FLOATS:
        raise NotImplementedError("the library quantizes floats along their last axes")
    leading = x.shape[: x.ndim - count]
    slices = math.prod(leading)
    types = [jax.ShapeDtypeStruct((slices, math.prod(x.shape[x.ndim - count :])), dtype)]
    types += [jax.ShapeDtypeStruct((slices,), each) for each in (np.float32, dtype)]
    call = jax.ffi.ffi_call(function.target, types)
    values, scale, zero_point = call(x.reshape(types[0].shape), is_symmetric=symmetric, is_by_row=by_row)
    shape = (*leading, *(1,) * count) if by_row else leading
    return DynamicQuantizeOutput(values.reshape(x.shape), scale.reshape(shape), zero_point.reshape(shape))
