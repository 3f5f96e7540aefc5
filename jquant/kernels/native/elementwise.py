"""Sums and products of quantized tensors, by the library."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jquant.kernels.native.shared_library import ELEMENTWISE, require
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_RANK = 3  # of the arrays that the library takes
_SHORT = 32  # a row of fewer elements takes the library longer than XLA
_MOST_SHORT_ROWS = 512  # more take so long that it is worth compiling a loop


def combine(a: Quantized, b: Quantized, output: ScaleZeroPoint, *, is_product: bool, dtype: np.dtype) -> jax.Array:
    """`formulas.elementwise.multiply` or `add`, of arrays of one rank.

    Raises:
      NotImplementedError: the library cannot be used; an array has several scales or zero points, as `jax.vmap` makes them;
        sizes are symbolic; or the arrays broadcast in too many turns, or in too many short rows. The library takes three
        dimensions, each of which stands for adjacent ones that both arrays have, or only `a`, or only `b`; the last one is
        the row.
    """
    function = require(ELEMENTWISE, *a.values.shape, *b.values.shape)
    of_a, of_b, of_output = scalars(a, a.values.dtype), scalars(b, b.values.dtype), scalars(output, dtype)
    shape = np.broadcast_shapes(a.values.shape, b.values.shape)
    a_sizes, b_sizes = _merged(a.values.shape, b.values.shape)
    *outer, row = np.broadcast_shapes(a_sizes, b_sizes)
    if row < _SHORT and math.prod(outer) > _MOST_SHORT_ROWS:
        raise NotImplementedError("the library is slower than XLA for many short rows")
    call = jax.ffi.ffi_call(function.target, jax.ShapeDtypeStruct((*outer, row), dtype))
    operands = a.values.reshape(a_sizes), *of_a, b.values.reshape(b_sizes), *of_b, *of_output
    return call(*operands, is_product=is_product).reshape(shape)


def scalars(x: Quantized | ScaleZeroPoint, dtype: np.dtype) -> tuple[jax.Array, jax.Array]:
    """The scale, and the zero point, of `dtype`.

    Raises:
      NotImplementedError: there are several.
    """
    zero_point = jnp.zeros((), dtype) if x.zero_point is None else x.zero_point
    if x.scale.size != 1 or zero_point.size != 1:
        raise NotImplementedError("the library has one scale and one zero point for each array")
    return x.scale.reshape(()), zero_point.reshape(())


def _merged(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The shapes in three dimensions: adjacent ones that the same arrays have become one."""
    merged: list[tuple[int, int]] = []
    for pair in zip(a, b, strict=True):
        if pair == (1, 1):
            continue
        if merged and [size == 1 for size in merged[-1]] == [size == 1 for size in pair]:
            before = merged.pop()
            pair = before[0] * pair[0], before[1] * pair[1]
        merged.append(pair)
    if len(merged) > _RANK:
        raise NotImplementedError("the library does not broadcast arrays in so many turns")
    merged = [(1, 1)] * (_RANK - len(merged)) + merged
    return [size for size, _ in merged], [size for _, size in merged]
