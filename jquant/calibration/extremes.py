"""Ranges of the finite numbers in an array: from the smallest to the largest, with the same bits on every platform."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jquant.arithmetic import float_bits
from jquant.calibration.observer import AxisName, Range


@functools.partial(jax.jit, static_argnames="shape")
def empty(shape: tuple[int, ...] = ()) -> Range:
    """The empty range, before the first batch. Jitted, so that no number is sent to the device."""
    return Range(min=jnp.full(shape, jnp.inf, jnp.float32), max=jnp.full(shape, -jnp.inf, jnp.float32))


def is_empty(range: Range) -> jax.Array:
    return range.min > range.max


def or_zero(range: Range) -> Range:
    """The range, or [0, 0] where it is empty."""
    low, high = (jnp.where(is_empty(range), jnp.float32(0), bound) for bound in range)
    return Range(min=low, max=high)


def extremes(x: jax.Array, axis: int | None, axis_name: AxisName) -> Range:
    """The extremes of the finite numbers: of all of them, or of each slice along `axis`."""
    kept = None if axis is None else axis % x.ndim
    others = tuple(dimension for dimension in range(x.ndim) if dimension != kept)
    finite, order = is_finite(x), _order(x)
    low = jnp.where(finite, order, float_bits.INFINITY).min(others, initial=float_bits.INFINITY)
    high = jnp.where(finite, order, ~float_bits.INFINITY).max(others, initial=~float_bits.INFINITY)
    if axis_name is not None:
        low, high = lax.pmin(low, axis_name), lax.pmax(high, axis_name)
    return Range(min=_value(low), max=_value(high))


def union(a: Range, b: Range) -> Range:
    """The smallest range that holds both."""
    low, high = (tuple(map(_order, bounds)) for bounds in zip(a, b, strict=True))
    return Range(min=_value(jnp.minimum(*low)), max=_value(jnp.maximum(*high)))


def is_finite(x: jax.Array) -> jax.Array:
    return (float_bits.bits(x) & float_bits.MAGNITUDE) < float_bits.INFINITY


def _order(x: jax.Array) -> jax.Array:
    """Integers that have the order of the floats, and distinguish zeros of both signs and subnormal numbers.

    The maximum of such floats differs between platforms, and depends on the order of the operands.
    """
    return float_bits.bits(x) ^ ((float_bits.bits(x) >> 31) & float_bits.MAGNITUDE)


def _value(order: jax.Array) -> jax.Array:
    """The inverse of `_order`."""
    return float_bits.from_bits(order ^ ((order >> 31) & float_bits.MAGNITUDE))
