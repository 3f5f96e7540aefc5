"""Sums and products of quantized tensors: in one call of compiled code on CPUs, elsewhere as XLA compiles them."""

import functools
from collections.abc import Callable

import jax
import numpy as np

from jquant.formulas import elementwise
from jquant.kernels import one_call
from jquant.kernels.native import elementwise as native
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


def add(a: Quantized, b: Quantized, output: ScaleZeroPoint, dtype: np.dtype) -> jax.Array:
    """`formulas.elementwise.add`, for tensors of any ranks."""
    return _combine(elementwise.add, a, b, output, dtype)


def multiply(a: Quantized, b: Quantized, output: ScaleZeroPoint, dtype: np.dtype) -> jax.Array:
    """`formulas.elementwise.multiply`, for tensors of any ranks."""
    return _combine(elementwise.multiply, a, b, output, dtype)


def _combine(
    formula: Callable[..., jax.Array], a: Quantized, b: Quantized, output: ScaleZeroPoint, dtype: np.dtype
) -> jax.Array:
    rank = max(a.values.ndim, b.values.ndim)
    kernel = functools.partial(native.combine, is_product=formula is elementwise.multiply, dtype=dtype)
    return one_call.integers(functools.partial(formula, dtype=dtype), kernel, rank, a.to_rank(rank), b.to_rank(rank), output)
