"""Observers of the smallest and the largest number: over all batches, or averaged over them."""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jquant.arguments.assertions import require
from jquant.arguments.statics import dimension, integer, number
from jquant.arithmetic import exact
from jquant.calibration.checks import checked_axis_name, float_batch, require_shape, require_state
from jquant.calibration.extremes import empty, extremes, is_empty, or_zero, union
from jquant.calibration.observer import AxisName, Observer, Range
from jquant.errors import DescriptorError
from jquant.placement import explain_array_errors_as

_ANY_DIMENSION = range(-sys.maxsize, sys.maxsize)


def min_max(*, axis: int | None = None, axis_name: AxisName = None) -> Observer:
    """Observes the smallest and the largest value.

    The range is ``[min(x), max(x)]`` over all batches, exactly, whatever their order and however they are split.

    NaN and infinities are ignored.

    Args:
      axis: the dimension of a batch along which each slice, such as a channel, has its own range; a negative one counts
        from the end. None: one range for all.
      axis_name: the axes of a `jax.shard_map` over which a batch is split. Not needed for any other use of a mesh.

    Returns:
      `Observer`, whose state is the `Range` so far.

    Raises:
      DescriptorTypeError: an `axis` that is not an integer, or an `axis_name` that is not a string or a tuple of strings.

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
    return _checked_extremes_observer("min_max", None, axis, axis_name)


def moving_average(averaging_constant: float = 0.01, *, axis: int | None = None, axis_name: AxisName = None) -> Observer:
    """Observes a moving average of the smallest and the largest value of each batch.

    ``min = min + averaging_constant * (min(x) - min)``, and `max` likewise. The first batch sets the initial values.

    Each step is rounded once in float32. The order of the batches matters: later ones count more. NaN and infinities are
    ignored, and so is a batch that has nothing else.

    Args:
      averaging_constant: the weight of a new batch, from 0 to 1. (One minus the decay of an exponential average.)
      axis, axis_name: as in `min_max`.

    Returns:
      `Observer`, whose state is the `Range` so far.

    Raises:
      DescriptorError: an `averaging_constant` outside of [0, 1].
      DescriptorTypeError: an `averaging_constant` that is not a number; an `axis` or an `axis_name` that `min_max` rejects.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> observer = jquant.calibration.moving_average(0.25)
      >>> state = observer.update(observer.init(), jnp.array([-1.0, 2.0]))
      >>> state = observer.update(state, jnp.array([-3.0, 10.0]))
      >>> print(*observer.compute_range(state))
      -1.5 4.0

    References:
      PyTorch, `torch.ao.quantization.MovingAverageMinMaxObserver`. onnxruntime, `MinMaxCalibrater`, which first averages
      all batches of one call.
    """
    name = "moving_average"
    averaging_constant = number(name, "averaging_constant", averaging_constant, 0, 1)
    return _checked_extremes_observer(name, averaging_constant, axis, axis_name)


def _checked_extremes_observer(
    name: str, averaging_constant: float | None, axis: int | None, axis_name: AxisName
) -> Observer:
    """`_extremes_observer`, whose cache has the same key for 1, 1.0 and True: the arguments are checked before."""
    if axis is not None:
        axis = integer(name, "axis", axis, _ANY_DIMENSION, "a dimension of a batch, or None")
    return _extremes_observer(name, averaging_constant, axis, checked_axis_name(name, axis_name))


@functools.cache
def _extremes_observer(name: str, averaging_constant: float | None, axis: int | None, axis_name: AxisName) -> Observer:
    def state_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the ranges in the state, for batches of this shape."""
        return () if axis is None else (shape[dimension(name, axis, len(shape))],)

    def init(batch: Any = None) -> Range:
        require_shape(name, batch)
        if axis is not None and batch is None:
            raise DescriptorError(f"{name}: with axis={axis}, init needs a batch or a jax.ShapeDtypeStruct, for its shape")
        return empty(() if batch is None else state_shape(batch.shape))

    @jax.jit
    def updated(state: Range, batch: jax.Array) -> Range:
        seen = extremes(exact.widen(batch), axis, axis_name)
        return union(state, seen) if averaging_constant is None else _averaged(state, seen, averaging_constant)

    @explain_array_errors_as(name)
    def update(state: Range, batch: ArrayLike) -> Range:
        batch = float_batch(name, "batch", batch)
        require_ranges(state)
        actual, expected = state.min.shape, state_shape(batch.shape)
        message = (
            f"{name}: state has ranges of shape {actual}; with axis={axis}, a batch of shape {batch.shape} needs {expected}"
        )
        require(actual == expected, message)
        return updated(state, batch)

    def require_ranges(state: Range) -> None:
        require_state(name, state, _ranges_of_shape(getattr(getattr(state, "min", None), "shape", ())))

    jitted_or_zero = jax.jit(or_zero)

    @explain_array_errors_as(name)
    def compute_range(state: Range) -> Range:
        require_ranges(state)
        return jitted_or_zero(state)

    return Observer(init, update, compute_range)


@functools.cache
def _ranges_of_shape(shape: tuple[int, ...]) -> Range:
    bound: Any = jax.ShapeDtypeStruct(shape, jnp.float32)
    return Range(min=bound, max=bound)


def _averaged(state: Range, seen: Range, averaging_constant: float) -> Range:
    """The moving average of ranges, after a batch whose range is `seen`."""

    def average(old: jax.Array, new: jax.Array) -> jax.Array:
        step = exact.product(exact.difference(new, old), jnp.float32(averaging_constant))
        return exact.sum(old, step)

    def bound(old: jax.Array, new: jax.Array, averaged: jax.Array) -> jax.Array:
        return jnp.where(is_empty(seen), old, jnp.where(is_empty(state), new, averaged))

    low, high = map(average, or_zero(state), or_zero(seen))  # the infinities of an empty range would give NaN
    return Range(min=bound(state.min, seen.min, low), max=bound(state.max, seen.max, high))
