"""Quantization by the range of the values themselves: in one call of compiled code on CPUs, elsewhere as XLA compiles it."""

import functools

import jax
import numpy as np

from jquant.formulas import dynamic_quantization
from jquant.kernels import one_call
from jquant.kernels.native import dynamic_quantization as native
from jquant.lowering import recording
from jquant.results import DynamicQuantizeOutput


def quantize(
    x: jax.Array, where: jax.Array | None, axes: tuple[int, ...] | None, symmetric: bool, dtype: np.dtype
) -> DynamicQuantizeOutput:
    """`formulas.dynamic_quantization.quantize`."""
    if where is not None or recording.is_active():
        return dynamic_quantization.quantize(x, where, axes, symmetric, dtype)
    from_end = None if axes is None else tuple(axis - x.ndim for axis in axes)
    return DynamicQuantizeOutput(*_quantize(x, x.ndim, from_end, symmetric, dtype))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3, 4))
def _quantize(
    x: jax.Array, rank: int, axes: tuple[int, ...] | None, symmetric: bool, dtype: np.dtype
) -> tuple[jax.Array, ...]:
    """Of the last `rank` dimensions, along `axes`, which count from the end, or of all."""

    def by_xla(x: jax.Array) -> DynamicQuantizeOutput:
        return _by_formula(x, rank, axes, symmetric, dtype)

    def by_library(x: jax.Array) -> DynamicQuantizeOutput:
        along = tuple(range(-rank, 0)) if axes is None else axes
        return native.quantize(x, along, symmetric, dtype, by_row=axes is not None)

    return tuple(one_call.arrays(by_xla, by_library, x))


def _by_formula(
    x: jax.Array, rank: int, axes: tuple[int, ...] | None, symmetric: bool, dtype: np.dtype
) -> DynamicQuantizeOutput:
    function = functools.partial(dynamic_quantization.quantize, where=None, symmetric=symmetric, dtype=dtype)
    from_start = None if axes is None else tuple(axis + rank for axis in axes)
    mapped = functools.partial(function, axes=from_start)
    for _ in range(x.ndim - rank):  # dimensions that `jax.vmap` has added
        mapped = jax.vmap(mapped)
    return mapped(x)


@_quantize.defjvp
def _quantize_jvp(rank, axes, symmetric, dtype, primals, tangents):
    (x,), (dx,) = primals, tangents
    values, scale, zero_point = _quantize(x, rank, axes, symmetric, dtype)
    _, scale_dot = jax.jvp(lambda x: _by_formula(x, rank, axes, symmetric, dtype).scale, (x,), (dx,))
    no_dot = [np.zeros(each.shape, jax.dtypes.float0) for each in (values, zero_point)]
    return (values, scale, zero_point), (no_dot[0], scale_dot, no_dot[1])
