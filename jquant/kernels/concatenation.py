"""Quantized tensors, joined: in one call of compiled code on CPUs, elsewhere as XLA compiles it."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from jquant.formulas import concatenation
from jquant.kernels import one_call
from jquant.kernels.native import concatenation as native
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


def concatenate(tensors: Sequence[Quantized], output: ScaleZeroPoint, axis: int, dtype: np.dtype) -> jax.Array:
    """`formulas.concatenation.concatenate`."""
    formula, kernel = (
        functools.partial(function, axis=axis, dtype=dtype) for function in (concatenation.concatenate, native.concatenate)
    )
    return one_call.integers(formula, kernel, tensors[0].values.ndim, list(tensors), output)
