"""Observers: what is kept of a stream of batches, and the range that it gives. Those of the extreme values."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.typing import ArrayLike

from jquant import exact
from jquant.descriptor import require, require_axis
from jquant.errors import DescriptorTypeError
from jquant.modes import data_type_name
from jquant.operands import Operand, operand

AxisName = str | tuple[str, ...] | None
_INFINITY = np.int32(0x7F800000)
_MAGNITUDE = np.int32(0x7FFFFFFF)


class Range(NamedTuple):
    """The real numbers from `min` to `max`, float32; ``[inf, -inf]``, which holds none, in the state of an observer."""

    min: jax.Array
    max: jax.Array


export.register_namedtuple_serialization(Range, serialized_name="jquant.calibration.Range")


class Observer(NamedTuple):
    """Three pure functions, which make a range of a stream of batches.

    Each goes into `jax.jit`, `jax.lax.scan` and the rest; other values never recompile. The state is a pytree of arrays of
    fixed shapes. Observers made with equal arguments are equal, and hashable.

    Attributes:
      init: ``init(batch=None)``, the state before the first batch. An observer of each channel needs a batch, or a
        `jax.ShapeDtypeStruct`, for its shape.
      update: ``update(state, batch)``, the state after another batch: float32, float16 or bfloat16, of any shape.
      compute_range: ``compute_range(state)``, the `Range` of what has been seen; [0, 0] where nothing has been.
    """

    init: Callable[..., Any]
    update: Callable[[Any, ArrayLike], Any]
    compute_range: Callable[[Any], Range]


def min_max(*, axis: int | None = None, axis_name: AxisName = None) -> Observer:
    """Observes the smallest and the largest value.

    ``[min(x), max(x)]`` of all batches, exactly, whatever their order and however they are split.

    NaN and infinities are passed over.

    Args:
      axis: the dimension of a batch along which each slice, as of a channel, has a range of its own, counted from 0; None
        for one range. Negative numbers raise.
      axis_name: the axes of a `jax.shard_map` over which a batch is split. Elsewhere a mesh needs no mention.

    Returns:
      `Observer`, whose state is the `Range` so far.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> observer = jquant.calibration.min_max(axis=1)
      >>> batch = jnp.array([[-1.0, 5.0], [2.0, 7.0]])
      >>> state = observer.update(observer.init(batch), batch)
      >>> print(*observer.compute_range(state))
      [-1.  5.] [2. 7.]

    References:
      PyTorch, `torch.ao.quantization.MinMaxObserver` and `PerChannelMinMaxObserver`. onnxruntime, `MinMaxCalibrater`.
    """
    return _extremes_observer("min_max", None, axis, axis_name)


def moving_average(averaging_constant: float = 0.01, *, axis: int | None = None, axis_name: AxisName = None) -> Observer:
    """Observes a moving average of the smallest and the largest value of each batch.

    ``min = min + averaging_constant * (min(x) - min)``, and `max` likewise; those of the first batch to begin with.

    Each step is rounded once in float32. The order of the batches matters, the last ones most. NaN and infinities are passed
    over, and so is a batch that has nothing else.

    Args:
      averaging_constant: what a batch counts for, from 0 to 1. (One minus the decay of an exponential average.)
      axis, axis_name: as in `min_max`.

    Returns:
      `Observer`, whose state is the `Range` so far.

    Raises:
      DescriptorError: an `averaging_constant` outside of [0, 1].

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> observer = jquant.calibration.moving_average(0.25)
      >>> state = observer.update(observer.init(), jnp.array([-1.0, 2.0]))
      >>> state = observer.update(state, jnp.array([-3.0, 10.0]))
      >>> print(*observer.compute_range(state))
      -1.5 4.0

    References:
      PyTorch, `torch.ao.quantization.MovingAverageMinMaxObserver`. onnxruntime, `MinMaxCalibrater`, which averages
      all batches of one call before that.
    """
    name = "moving_average"
    inside = 0 <= averaging_constant <= 1
    require(inside, f"{name}: averaging_constant is {averaging_constant}; it must be from 0 to 1")
    return _extremes_observer(name, float(averaging_constant), axis, axis_name)


@functools.cache
def _extremes_observer(name: str, averaging_constant: float | None, axis: int | None, axis_name: AxisName) -> Observer:
    def init(batch: Any = None) -> Range:
        if axis is None:
            return empty()
        require(batch is not None, f"{name}: with axis={axis}, init needs a batch or a jax.ShapeDtypeStruct, for its shape")
        require_axis(name, axis, len(batch.shape))
        return empty(batch.shape[axis])

    @jax.jit
    def updated(state: Range, batch: jax.Array) -> Range:
        seen = extremes(exact.widen(batch), axis, axis_name)
        return union(state, seen) if averaging_constant is None else _averaged(state, seen, averaging_constant)

    def update(state: Range, batch: ArrayLike) -> Range:
        batch = float_batch(name, batch)
        if axis is not None:
            require_axis(name, axis, batch.ndim)
            sizes, wanted = batch.shape[axis : axis + 1], state.min.shape
            require(sizes == wanted, f"{name}: axis={axis} of the batch has sizes {sizes}, that of the first {wanted}")
        return updated(state, batch)

    return Observer(init, update, jax.jit(or_zero))


def float_batch(name: str, batch: ArrayLike) -> Operand:
    """A batch as an array, asserting that it is of floats."""
    batch = operand(name, "batch", batch, jnp.dtype(jnp.float32))
    given, allowed = data_type_name(batch.dtype), ("FLOAT32", "FLOAT16", "BFLOAT16")
    message = f"{name}: batch has data type {given}; it must be one of {', '.join(allowed)}"
    require(given in allowed, message, DescriptorTypeError)
    return batch


def empty(*shape: int) -> Range:
    """The range of nothing, before the first batch."""
    return Range(jnp.full(shape, jnp.inf, jnp.float32), jnp.full(shape, -jnp.inf, jnp.float32))


def is_empty(range: Range) -> jax.Array:
    return range.min > range.max


def or_zero(range: Range) -> Range:
    """The range, or [0, 0] where it is empty."""
    return Range(*(jnp.where(is_empty(range), jnp.float32(0), bound) for bound in range))


def extremes(x: jax.Array, axis: int | None, axis_name: AxisName) -> Range:
    """Of the finite values: of all of them, or of each slice along `axis`."""
    others = tuple(dimension for dimension in range(x.ndim) if dimension != axis)
    finite, order = is_finite(x), _order(x)
    low = jnp.where(finite, order, _INFINITY).min(others, initial=_INFINITY)
    high = jnp.where(finite, order, ~_INFINITY).max(others, initial=~_INFINITY)
    if axis_name is not None:
        low, high = lax.pmin(low, axis_name), lax.pmax(high, axis_name)
    return Range(_value(low), _value(high))


def union(a: Range, b: Range) -> Range:
    """The least range that holds both."""
    low, high = (tuple(map(_order, bounds)) for bounds in zip(a, b, strict=True))
    return Range(_value(jnp.minimum(*low)), _value(jnp.maximum(*high)))


def is_finite(x: jax.Array) -> jax.Array:
    return (exact.bits(x) & _MAGNITUDE) < _INFINITY


def _order(x: jax.Array) -> jax.Array:
    """An integer that has the order of the floats, zeros of both signs and subnormal numbers told apart.

    What a maximum of floats makes of those is the platform's choice, and depends on the order.
    """
    return exact.bits(x) ^ ((exact.bits(x) >> 31) & _MAGNITUDE)


def _value(order: jax.Array) -> jax.Array:
    """The inverse of `_order`."""
    return lax.bitcast_convert_type(order ^ ((order >> 31) & _MAGNITUDE), jnp.float32)


def _averaged(state: Range, seen: Range, averaging_constant: float) -> Range:
    def average(old: jax.Array, new: jax.Array) -> jax.Array:
        moved = exact.product(exact.difference(new, old), jnp.float32(averaging_constant))
        return jnp.where(is_empty(seen), old, jnp.where(is_empty(state), new, exact.sum(old, moved)))

    return Range(*map(average, state, seen))
