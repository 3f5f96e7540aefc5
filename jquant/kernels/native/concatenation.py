"""Quantized tensors, joined by the library."""

import math
from collections.abc import Sequence

import jax
import numpy as np

from jquant.arithmetic.broadcasting import broadcast_beside
from jquant.kernels.native.elementwise import scalars
from jquant.kernels.native.shared_library import CONCATENATE, require
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_SHORT = 4  # to copy a row of fewer elements takes the library longer than XLA
_MOST_SHORT_ROWS = 4096  # more take so long that it is worth compiling a loop


def concatenate(tensors: Sequence[Quantized], output: ScaleZeroPoint, axis: int, dtype: np.dtype) -> jax.Array:
    """`formulas.concatenation.concatenate`.

    Raises:
      NotImplementedError: the library cannot be used; a tensor has several scales or zero points, as `jax.vmap` makes them;
        sizes are symbolic; or there are many short rows, of what follows each other in a tensor.
    """
    function = require(CONCATENATE, *(size for x in tensors for size in x.values.shape))
    of_output = scalars(output, dtype)
    of_tensors = [scalars(x, x.values.dtype) for x in tensors]
    values = broadcast_beside(axis, [x.values for x in tensors])
    shape = list(values[0].shape)
    shape[axis] = sum(x.shape[axis] for x in values)
    rows = math.prod(shape[:axis])
    matrices = [x.reshape(rows, math.prod(x.shape[axis:])) for x in values]
    if rows > _MOST_SHORT_ROWS and any(x.shape[1] < _SHORT for x in matrices):
        raise NotImplementedError("the library is slower than XLA for many short rows")
    call = jax.ffi.ffi_call(function.target, jax.ShapeDtypeStruct((rows, math.prod(shape[axis:])), dtype))
    operands = [each for x, of_tensor in zip(matrices, of_tensors, strict=True) for each in (x, *of_tensor)]
    return call(*of_output, *operands).reshape(shape)
