"""Observers: the state kept of a stream of batches, and the range computed from it. Those of the extreme values."""

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import export, lax
from jax.typing import ArrayLike

from jquant.arguments.assertions import require
from jquant.arguments.operands import Operand, operand
from jquant.arguments.statics import dimension, integer, number
from jquant.arithmetic import exact, float_bits
from jquant.errors import DescriptorError, DescriptorTypeError, shown
from jquant.modes import data_type_name
from jquant.placement import names_arrays_as

AxisName = str | tuple[str, ...] | None
_ANY_DIMENSION = range(-sys.maxsize, sys.maxsize)


class Range(NamedTuple):
    """The real numbers from `min` to `max`, float32. In the state of an observer, ``[inf, -inf]`` is the empty range."""

    min: jax.Array
    max: jax.Array


export.register_namedtuple_serialization(Range, serialized_name="jquant.calibration.Range")


class Observer(NamedTuple):
    """Three pure functions that compute a range from a stream of batches.

    Each works under `jax.jit`, `jax.lax.scan` and the rest; new values never recompile. The state is a pytree of arrays of
    fixed shapes. Observers made with equal arguments are equal, and hashable.

    Attributes:
      init: ``init(batch=None)``, the state before the first batch. An observer of each channel needs a batch, or a
        `jax.ShapeDtypeStruct`, for its shape.
      update: ``update(state, batch)``, the state after another batch: float32, float16 or bfloat16, of any shape.
      compute_range: ``compute_range(state)``, the `Range` of what has been seen; [0, 0] if nothing has been seen.
        Called with a state that is not traced, that of `percentile`, `mean_squared_error` and `entropy` reads it back, and
        warns if the bins of the histogram are too coarse for the range.
    """

    init: Callable[..., Any]
    update: Callable[[Any, ArrayLike], Any]
    compute_range: Callable[[Any], Range]


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
    """Checks the arguments before the cache, in which 1, 1.0 and True are the same key."""
    if axis is not None:
        axis = integer(name, "axis", axis, _ANY_DIMENSION, "a dimension of a batch, or None")
    return _extremes_observer(name, averaging_constant, axis, checked_axis_name(name, axis_name))


@functools.cache
def _extremes_observer(name: str, averaging_constant: float | None, axis: int | None, axis_name: AxisName) -> Observer:
    def kept(shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the state, for batches of the given shape."""
        return () if axis is None else (shape[dimension(name, axis, len(shape))],)

    def init(batch: Any = None) -> Range:
        require_shape(name, batch)
        if axis is not None and batch is None:
            raise DescriptorError(f"{name}: with axis={axis}, init needs a batch or a jax.ShapeDtypeStruct, for its shape")
        return empty(() if batch is None else kept(batch.shape))

    @jax.jit
    def updated(state: Range, batch: jax.Array) -> Range:
        seen = extremes(exact.widen(batch), axis, axis_name)
        return union(state, seen) if averaging_constant is None else _averaged(state, seen, averaging_constant)

    @names_arrays_as(name)
    def update(state: Range, batch: ArrayLike) -> Range:
        batch = float_batch(name, "batch", batch)
        require_ranges(state)
        shape, given = kept(batch.shape), state.min.shape
        require(
            given == shape,
            f"{name}: state has ranges of shape {given}; with axis={axis}, a batch of shape {batch.shape} needs {shape}",
        )
        return updated(state, batch)

    def require_ranges(state: Range) -> None:
        require_state(name, state, _ranges_of(getattr(getattr(state, "min", None), "shape", ())))

    computed = jax.jit(or_zero)

    @names_arrays_as(name)
    def compute_range(state: Range) -> Range:
        require_ranges(state)
        return computed(state)

    return Observer(init, update, compute_range)


def float_batch(name: str, what: str, batch: ArrayLike) -> Operand:
    """A batch as an array, asserting that it is of floats."""
    batch = operand(name, what, batch, jnp.dtype(jnp.float32))
    given, allowed = data_type_name(batch.dtype), ("FLOAT32", "FLOAT16", "BFLOAT16")
    message = f"{name}: {what} has data type {given}; it must be one of {', '.join(allowed)}"
    require(given in allowed, message, DescriptorTypeError)
    return batch


def checked_axis_name(name: str, axis_name: AxisName) -> AxisName:
    """`axis_name`, asserting that it names axes of a mesh; None if it names none."""
    names = axis_name if isinstance(axis_name, tuple) else () if axis_name is None else (axis_name,)
    if not all(isinstance(each, str) for each in names):
        message = f"{name}: axis_name is {shown(axis_name)}; it must be a string, a tuple of strings, or None"
        raise DescriptorTypeError(message)
    return axis_name if names else None


def require_shape(name: str, batch: Any) -> None:
    """Asserts that `batch` is None, or has what `init` reads of an array: a shape."""
    if batch is not None and not isinstance(getattr(batch, "shape", None), tuple):
        message = f"{name}: batch is {shown(batch)}; init takes an array, a jax.ShapeDtypeStruct, or None"
        raise DescriptorTypeError(message)


def require_state(name: str, state: Any, like: Any) -> None:
    """Asserts that `state` is a tree of arrays with the shapes and dtypes of `like`."""
    is_one = isinstance(state, type(like))
    (leaves, structure), (wanted, wanted_structure) = map(jax.tree.flatten, (state if is_one else None, like))
    if structure != wanted_structure or list(map(_signature, leaves)) != list(map(_signature, wanted)):
        given = jax.tree.map(_described, state) if is_one else state
        right = jax.tree.map(_described, like)
        raise DescriptorTypeError(f"{name}: state is {shown(given)}; this observer's init and update return {shown(right)}")


def _signature(leaf: Any) -> tuple:
    return getattr(leaf, "shape", None), getattr(leaf, "dtype", None)


def _described(leaf: Any) -> str:
    shape, dtype = _signature(leaf)
    return type(leaf).__name__ if shape is None or dtype is None else f"{dtype}{list(shape)}"


@functools.cache
def _ranges_of(shape: tuple[int, ...]) -> Range:
    bound: Any = jax.ShapeDtypeStruct(shape, jnp.float32)
    return Range(bound, bound)


@functools.partial(jax.jit, static_argnames="shape")
def empty(shape: tuple[int, ...] = ()) -> Range:
    """The empty range, before the first batch. Jitted, so that no number is sent to the device."""
    return Range(jnp.full(shape, jnp.inf, jnp.float32), jnp.full(shape, -jnp.inf, jnp.float32))


def is_empty(range: Range) -> jax.Array:
    return range.min > range.max


def or_zero(range: Range) -> Range:
    """The range, or [0, 0] where it is empty."""
    return Range(*(jnp.where(is_empty(range), jnp.float32(0), bound) for bound in range))


def extremes(x: jax.Array, axis: int | None, axis_name: AxisName) -> Range:
    """The extremes of the finite values: of all of them, or of each slice along `axis`."""
    kept = None if axis is None else axis % x.ndim
    others = tuple(dimension for dimension in range(x.ndim) if dimension != kept)
    finite, order = is_finite(x), _order(x)
    low = jnp.where(finite, order, float_bits.INFINITY).min(others, initial=float_bits.INFINITY)
    high = jnp.where(finite, order, ~float_bits.INFINITY).max(others, initial=~float_bits.INFINITY)
    if axis_name is not None:
        low, high = lax.pmin(low, axis_name), lax.pmax(high, axis_name)
    return Range(_value(low), _value(high))


def union(a: Range, b: Range) -> Range:
    """The smallest range that holds both."""
    low, high = (tuple(map(_order, bounds)) for bounds in zip(a, b, strict=True))
    return Range(_value(jnp.minimum(*low)), _value(jnp.maximum(*high)))


def is_finite(x: jax.Array) -> jax.Array:
    return (float_bits.bits(x) & float_bits.MAGNITUDE) < float_bits.INFINITY


def _order(x: jax.Array) -> jax.Array:
    """An integer that has the order of the floats, and distinguishes zeros of both signs and subnormal numbers.

    What a maximum of floats makes of those differs between platforms, and depends on the order.
    """
    return float_bits.bits(x) ^ ((float_bits.bits(x) >> 31) & float_bits.MAGNITUDE)


def _value(order: jax.Array) -> jax.Array:
    """The inverse of `_order`."""
    return float_bits.from_bits(order ^ ((order >> 31) & float_bits.MAGNITUDE))


def _averaged(state: Range, seen: Range, averaging_constant: float) -> Range:
    def average(old: jax.Array, new: jax.Array) -> jax.Array:
        moved = exact.product(exact.difference(new, old), jnp.float32(averaging_constant))
        return exact.sum(old, moved)

    averages = map(average, or_zero(state), or_zero(seen))  # of finite bounds: infinities of an empty range would give NaN
    return Range(
        *(
            jnp.where(is_empty(seen), old, jnp.where(is_empty(state), new, averaged))
            for old, new, averaged in zip(state, seen, averages, strict=True)
        )
    )
