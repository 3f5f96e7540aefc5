"""The largest and the smallest of many numbers: as fast as XLA can, and the same however a mesh splits them."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import float_bits
from jquant.lowering.bitcast import bitcast, bitcast_unguarded
from jquant.lowering.partitioned import unless_partitioned


def range_with_zero(x: jax.Array, axes: Sequence[int] | None = None) -> tuple[jax.Array, jax.Array]:
    """``min(0, min x)`` and ``max(0, max x)``, both NaN if any x is: over all, or along `axes`, which keep a size of 1."""
    if axes is None:
        high, low = _ends(x, tuple(range(-x.ndim, 0)))
    else:
        high, low = (lax.expand_dims(end, axes) for end in _ends(x, _from_behind(x, axes)))
    return low, high


def largest_magnitude(x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """``max(0, max |x|)`` along `axes`, which keep a size of 1; NaN if any x is.

    Computed in integers, for the reason given in `_ends`; XLA:CPU, too, skips a NaN.
    """
    largest, on_cpu = (functools.partial(largest, _from_behind(x, axes)) for largest in (_largest, _largest_at_once))
    (found,) = unless_partitioned(largest, largest, x, on_cpu=on_cpu)
    return found


def _from_behind(x: jax.Array, axes: Sequence[int]) -> tuple[int, ...]:
    """Dimensions counted from the end, so that they stay right with more leading dimensions."""
    return tuple(axis - x.ndim for axis in axes)


def _largest(axes: tuple[int, ...], x: jax.Array) -> tuple[jax.Array]:
    largest = float_bits.bits(lax.abs(x)).max(axes, keepdims=True, initial=0)
    return (float_bits.from_bits(largest),)


def _largest_at_once(axes: tuple[int, ...], x: jax.Array) -> tuple[jax.Array]:
    """XLA:CPU would convert all elements to integers before a reduction; this converts two floats in each step of it."""

    def larger(a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = (bitcast_unguarded(side, jnp.int32) & float_bits.MAGNITUDE for side in (a, b))
        return bitcast_unguarded(lax.max(a, b), jnp.float32)

    from_front = [x.ndim + axis for axis in axes]
    largest = lax.abs(lax.reduce(x, np.float32(0), larger, from_front))  # for a single number, XLA takes no step
    return (lax.expand_dims(largest, from_front),)


def below_largest(x: jax.Array, reverse: jax.Array, axis: int) -> jax.Array:
    """The difference of each 8-bit integer from the largest of its slice along `axis`, in uint8.

    If `reverse`, a scalar, is true, it is the difference from the smallest.
    """
    ordered = x if x.dtype == jnp.uint8 else bitcast(x, jnp.uint8) ^ np.uint8(0x80)
    flipped = lax.select(reverse, np.uint8(0xFF), np.uint8(0)).reshape((1,) * x.ndim)
    largest, on_cpu = (functools.partial(form, axis - x.ndim) for form in (_largest_flipped, _largest_or_smallest))
    (largest,) = unless_partitioned(largest, largest, ordered, flipped, on_cpu=on_cpu)
    return largest - (ordered ^ flipped)


def _largest_flipped(axis: int, x: jax.Array, flipped: jax.Array) -> Sequence[jax.Array]:
    return [jnp.max(x ^ flipped, axis, keepdims=True, initial=0)]


def _largest_or_smallest(axis: int, x: jax.Array, flipped: jax.Array) -> Sequence[jax.Array]:
    """The same by one reduction to both ends. XLA:CPU would write flipped integers to memory before it reduces them."""
    from_front = x.ndim + axis
    initial = np.uint8(0), np.uint8(0xFF)
    ends = lax.reduce((x, x), initial, lambda a, b: (lax.max(a[0], b[0]), lax.min(a[1], b[1])), (from_front,))
    largest, smallest = (lax.expand_dims(end, (from_front,)) for end in ends)
    return [jnp.where(flipped == 0, largest, ~smallest)]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _ends(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """``max(0, max x)`` and ``min(0, min x)`` along `axes`, which count from the end; both NaN if any x is.

    Computed in integers: those of non-negative floats have the order of the floats, with NaN above all. The float maxima of
    libraries that reduce over several devices skip a NaN, or do not, depending on where it is.
    """
    magnitude, zero = lax.abs(x), lax.full_like(x, 0)
    sides = lax.select(x <= zero, zero, magnitude), lax.select(x >= zero, zero, magnitude)
    bits = map(float_bits.bits, sides)
    at_once, apart = (functools.partial(maxima, axes) for maxima in (_maxima_at_once, _maxima_apart))
    high, low = map(float_bits.from_bits, unless_partitioned(at_once, apart, *bits))
    return high, -low


def _maxima_at_once(axes: tuple[int, ...], *operands: jax.Array) -> Sequence[jax.Array]:
    """Along `axes`, with 0. XLA:CPU fuses the operands into a single reduction, but materializes them for two."""
    zeros = (np.int32(0),) * len(operands)
    from_front = [operands[0].ndim + axis for axis in axes]
    return lax.reduce(operands, zeros, lambda a, b: tuple(map(lax.max, a, b)), from_front)


def _maxima_apart(axes: tuple[int, ...], *operands: jax.Array) -> Sequence[jax.Array]:
    """The same if a mesh splits them: XLA would gather the results of a single reduction, but combines those of two."""
    return [x.max(axes, initial=0) for x in operands]


@_ends.defjvp
def _ends_jvp(axes: tuple[int, ...], primals, tangents):
    _, dots = jax.jvp(lambda x: (x.max(axes, initial=0), x.min(axes, initial=0)), primals, tangents)
    return _ends(*primals, axes), dots
