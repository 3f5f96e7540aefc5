"""Reductions over axes."""

import jax.numpy as jnp

from jquant.onnx.registry import converter
from jquant.onnx.values import sizes


def _reduce(function, data, axes, keepdims, noop_with_empty_axes=0):
    axes = None if axes is None else tuple(axes)
    if not axes and noop_with_empty_axes:
        return data
    return function(data, axis=axes or None, keepdims=bool(keepdims))


@converter("ReduceMean", since=1, until=17)
def mean_to_17(data, *, axes=None, keepdims):
    return _reduce(jnp.mean, data, axes, keepdims)


@converter("ReduceMean", since=18, static=("axes",))
def mean(data, axes=None, *, keepdims, noop_with_empty_axes):
    return _reduce(jnp.mean, data, None if axes is None else sizes(axes), keepdims, noop_with_empty_axes)


@converter("ReduceSum", since=1, until=12)
def sum_to_12(data, *, axes=None, keepdims, xp):
    return _reduce(xp.sum, data, axes, keepdims)


@converter("ReduceSum", since=13, static=("axes",))
def sum_(data, axes=None, *, keepdims, noop_with_empty_axes, xp):
    return _reduce(xp.sum, data, None if axes is None else sizes(axes), keepdims, noop_with_empty_axes)
