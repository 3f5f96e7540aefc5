"""Sorting, arg-reductions, and selection by position."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.onnx.fusing.sorted_indices import INDICES
from jquant.onnx.graphs.graph import JQUANT
from jquant.onnx.graphs.values import sizes
from jquant.onnx.running.registry import converter


@converter("ArgMax", since=1)
def arg_max(data, *, axis, keepdims, select_last_index=0):
    return _arg_reduce(jnp.argmax, data, axis, keepdims, select_last_index)


@converter("ArgMin", since=1)
def arg_min(data, *, axis, keepdims, select_last_index=0):
    return _arg_reduce(jnp.argmin, data, axis, keepdims, select_last_index)


def _arg_reduce(function, data, axis, keepdims, select_last_index):
    """The index of the first among equal elements, or of the last."""
    if not select_last_index:
        return function(data, axis, keepdims=bool(keepdims))
    return data.shape[axis] - 1 - function(jnp.flip(data, axis), axis, keepdims=bool(keepdims))


@converter("TopK", since=1, until=9)
def top_k_to_9(x, *, k, axis):
    return _top(x, k, axis, 1)


@converter("TopK", since=10, static=("k",))
def top_k(x, k, *, axis, largest=1, sorted=1):
    """The elements are always sorted. Equal elements keep their order."""
    (count,) = sizes(k)
    return _top(x, count, axis, largest)


@converter(INDICES, domain=JQUANT, static=("k",))
def indices_in_order(x, k, *, axis):
    """The indices of the least elements, in order. NaN comes last; equal elements keep their order."""
    (count,) = sizes(k)
    indices = lax.broadcasted_iota(np.int32, x.shape, axis % x.ndim)
    return lax.slice_in_dim(lax.sort((x, indices), dimension=axis % x.ndim, num_keys=1)[1], 0, count, axis=axis)


def _top(x, k, axis, largest):
    x = jnp.moveaxis(x, axis, -1)
    values, indices = lax.top_k(x if largest else _reversed_order(x), k)
    values = values if largest else _reversed_order(values)
    return jnp.moveaxis(values, -1, axis), jnp.moveaxis(indices, -1, axis)


def _reversed_order(x):
    """Reverses the order of numbers, and is its own inverse. Integers cannot overflow: -128 becomes 127."""
    return ~x if jnp.issubdtype(x.dtype, jnp.integer) else -x


@converter("NonZero", since=9, static=("x",))
def non_zero(x, *, xp):
    return np.stack(np.nonzero(np.atleast_1d(x))).astype(np.int64)


@converter("Unique", since=11, static=("x",))
def unique(x, *, axis=None, sorted, xp):
    """Also returns the first index of each value, the index in the result of each element, and the counts."""
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return values, first, inverse.reshape(-1), counts


@converter("Compress", since=9, static=("condition",))
def compress(input, condition, *, axis=None, xp):
    """The slices where the condition is true. The condition may be shorter than the axis."""
    return xp.take(input, np.flatnonzero(condition), axis)


@converter("ReverseSequence", since=10)
def reverse_sequence(input, sequence_lens, *, batch_axis, time_axis):
    """Reverses each sequence up to its length, and leaves the rest as it is."""
    shape = [1] * input.ndim
    shape[time_axis] = input.shape[time_axis]
    steps = lax.broadcasted_iota(sequence_lens.dtype, shape, time_axis)
    lengths = jnp.expand_dims(sequence_lens, [i for i in range(input.ndim) if i != batch_axis])
    return jnp.take_along_axis(input, jnp.where(steps < lengths, lengths - 1 - steps, steps), time_axis)
