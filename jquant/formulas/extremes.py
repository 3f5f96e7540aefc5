"""The largest and the smallest elements along axes: fast on a CPU, and the same however a mesh splits an array."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import float_bits
from jquant.lowering import recording
from jquant.lowering.bitcast import bitcast, bitcast_unguarded
from jquant.lowering.partitioned import unless_partitioned


def range_with_zero(x: jax.Array, axes: Sequence[int] | None = None) -> tuple[jax.Array, jax.Array]:
    """``min(0, min x)`` and ``max(0, max x)``, both NaN if any x is: of all, or along `axes`, which keep a size of 1."""
    if axes is None:
        high, low = _high_and_low(x, tuple(range(-x.ndim, 0)))
    else:
        high, low = (lax.expand_dims(bound, axes) for bound in _high_and_low(x, _from_end(x, axes)))
    return low, high


def largest_magnitude(x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """``max(0, max |x|)`` along `axes`, which keep a size of 1; NaN if any x is.

    Computed in integers, for the reason stated in `_high_and_low`; XLA:CPU, too, skips a NaN.
    """
    if recording.is_active():  # ONNX has extremes of floats, and no bits of them in old operator sets
        return lax.abs(x).max(tuple(axes), keepdims=True, initial=0)
    largest, on_cpu = (functools.partial(largest, _from_end(x, axes)) for largest in (_largest, _largest_in_pairs))
    (magnitude,) = unless_partitioned(largest, largest, x, on_cpu=on_cpu)
    return magnitude


def _from_end(x: jax.Array, axes: Sequence[int]) -> tuple[int, ...]:
    """`axes` counted from the end, so that they stay right with more leading dimensions."""
    return tuple(axis - x.ndim for axis in axes)


def _largest(axes: tuple[int, ...], x: jax.Array) -> tuple[jax.Array]:
    largest = float_bits.bits(lax.abs(x)).max(axes, keepdims=True, initial=0)
    return (float_bits.from_bits(largest),)


def _largest_in_pairs(axes: tuple[int, ...], x: jax.Array) -> tuple[jax.Array]:
    """`_largest`, reading two floats as integers in each step: XLA:CPU would convert all elements before it reduces."""

    def larger(a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = (bitcast_unguarded(side, jnp.int32) & float_bits.MAGNITUDE for side in (a, b))
        return bitcast_unguarded(lax.max(a, b), jnp.float32)

    dimensions = [x.ndim + axis for axis in axes]
    largest = lax.abs(lax.reduce(x, np.float32(0), larger, dimensions))  # for a single number, XLA takes no step
    return (lax.expand_dims(largest, dimensions),)


def below_largest(x: jax.Array, reverse: jax.Array, axis: int) -> jax.Array:
    """The difference of each 8-bit integer from the largest of its slice along `axis`, in uint8.

    If `reverse`, a scalar, is true, it is the difference from the smallest.
    """
    if recording.is_active():  # in integers of 32 bits, of which ONNX has extremes and differences
        number = x.astype(jnp.int32)
        largest, smallest = number.max(axis, keepdims=True), number.min(axis, keepdims=True)
        return jnp.where(reverse, number - smallest, largest - number).astype(jnp.uint8)
    ordered = x if x.dtype == jnp.uint8 else bitcast(x, jnp.uint8) ^ np.uint8(0x80)
    flipped = lax.select(reverse, np.uint8(0xFF), np.uint8(0)).reshape((1,) * x.ndim)
    functions = _largest_flipped, _largest_or_smallest
    largest, on_cpu = (functools.partial(function, axis - x.ndim) for function in functions)
    (largest,) = unless_partitioned(largest, largest, ordered, flipped, on_cpu=on_cpu)
    return largest - (ordered ^ flipped)


def _largest_flipped(axis: int, x: jax.Array, flipped: jax.Array) -> Sequence[jax.Array]:
    return [jnp.max(x ^ flipped, axis, keepdims=True, initial=0)]


def _largest_or_smallest(axis: int, x: jax.Array, flipped: jax.Array) -> Sequence[jax.Array]:
    """`_largest_flipped`, by one reduction to both extremes: XLA:CPU would write flipped integers to memory before it."""
    dimension = x.ndim + axis
    initial = np.uint8(0), np.uint8(0xFF)
    extremes = lax.reduce((x, x), initial, lambda a, b: (lax.max(a[0], b[0]), lax.min(a[1], b[1])), (dimension,))
    largest, smallest = (lax.expand_dims(extreme, (dimension,)) for extreme in extremes)
    return [jnp.where(flipped == 0, largest, ~smallest)]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _high_and_low(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """``max(0, max x)`` and ``min(0, min x)`` along `axes`, which count from the end; both NaN if any x is.

    Computed in integers: the bits of non-negative floats have the order of the floats, with NaN above all. The float maxima
    of libraries that reduce over several devices skip a NaN, or do not, depending on where it is.
    """
    if recording.is_active():  # as in `largest_magnitude`
        return x.max(axes, initial=0), x.min(axes, initial=0)
    magnitude, zero = lax.abs(x), lax.full_like(x, 0)
    sides = lax.select(x <= zero, zero, magnitude), lax.select(x >= zero, zero, magnitude)
    bits = map(float_bits.bits, sides)
    at_once, separately = (functools.partial(maxima, axes) for maxima in (_maxima_at_once, _maxima_separately))
    high, low = map(float_bits.from_bits, unless_partitioned(at_once, separately, *bits))
    return high, -low


def _maxima_at_once(axes: tuple[int, ...], *operands: jax.Array) -> Sequence[jax.Array]:
    """``max(0, max x)`` of each operand. XLA:CPU fuses the operands into one reduction, but materialises them for two."""
    zeros = (np.int32(0),) * len(operands)
    dimensions = [operands[0].ndim + axis for axis in axes]
    return lax.reduce(operands, zeros, lambda a, b: tuple(map(lax.max, a, b)), dimensions)


def _maxima_separately(axes: tuple[int, ...], *operands: jax.Array) -> Sequence[jax.Array]:
    """`_maxima_at_once` on a mesh: XLA would gather the results of a single reduction, but combines those of two."""
    return [x.max(axes, initial=0) for x in operands]


@_high_and_low.defjvp
def _high_and_low_jvp(axes: tuple[int, ...], primals, tangents):
    _, dots = jax.jvp(lambda x: (x.max(axes, initial=0), x.min(axes, initial=0)), primals, tangents)
    return _high_and_low(*primals, axes), dots
