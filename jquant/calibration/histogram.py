"""A histogram of a stream of numbers that depends on its final bins only: it needs no first pass, and no particular order.

The bins divide ``[-2**k, 2**k)`` evenly, with the smallest k that holds all numbers so far. When k grows by 1, each new bin
is two of the old: the histogram is exactly that of all numbers at the final k.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from jquant.arguments.assertions import require
from jquant.arguments.statics import integer
from jquant.arithmetic import exact, float_bits, significands, wide
from jquant.calibration import coarse, observer
from jquant.calibration.observer import AxisName, Observer, Range
from jquant.placement import names_arrays_as

_BINS = tuple(2**bits for bits in range(2, 17))
_SUBNORMAL = -126  # the exponent below which no float32 is normal


class Histogram(NamedTuple):
    """The state of an observer of the distribution.

    Attributes:
      range: the smallest and the largest number.
      counts: how many numbers there are in each bin: the low and the high words of unsigned 64-bit integers.
    """

    range: Range
    counts: tuple[jax.Array, jax.Array]


export.register_namedtuple_serialization(Histogram, serialized_name="jquant.calibration.Histogram")


def checked_bins(name: str, num_bins: int) -> int:
    """`num_bins`, asserting that it is allowed. Called before a cache, in which 64 and 64.0 are the same key."""
    return integer(name, "num_bins", num_bins, _BINS, f"a power of two from {_BINS[0]} to {_BINS[-1]}")


def histogram_observer(
    name: str, num_bins: int, axis_name: AxisName, compute_range: Callable[[Histogram], Range], check: coarse.Check
) -> Observer:
    """The observer that keeps a histogram; `compute_range` computes a range from one that may be empty.

    `check` says why the bins are too coarse for a range, if they are.
    """

    @jax.jit
    def empty() -> Histogram:
        return Histogram(observer.empty(), (jnp.zeros(num_bins, jnp.uint32), jnp.zeros(num_bins, jnp.uint32)))

    def init(batch: Any = None) -> Histogram:
        observer.require_shape(name, batch)
        return empty()  # one histogram, whatever the shape

    like = jax.eval_shape(empty)
    computed = jax.jit(compute_range)

    @jax.jit
    def updated(state: Histogram, batch: jax.Array) -> Histogram:
        return _updated(state, exact.widen(batch), axis_name)

    @names_arrays_as(name)
    def update(state: Histogram, batch: ArrayLike) -> Histogram:
        batch = observer.float_batch(name, "batch", batch)
        observer.require_state(name, state, like)
        devices = 1 if axis_name is None else lax.axis_size(axis_name)
        if isinstance(batch.size, int):  # not a symbolic size of `jax.export`
            message = f"{name}: a batch has {batch.size * devices} elements; it must have fewer than 2**32"
            require(batch.size * devices < 2**32, message)
        return updated(state, batch)

    @names_arrays_as(name)
    def checked(state: Histogram) -> Range:
        observer.require_state(name, state, like)
        range = computed(state)
        coarse.warn(name, state, range, check)
        return range

    return Observer(init, update, checked)


def _updated(state: Histogram, x: jax.Array, axis_name: AxisName) -> Histogram:
    num_bins = state.counts[0].size
    together = observer.union(state.range, observer.extremes(x, None, axis_name))
    of_batch = _counts(x, exponent(together, num_bins), num_bins)
    if axis_name is not None:
        of_batch = lax.psum(of_batch, axis_name)
    growth = exponent(together, num_bins) - exponent(state.range, num_bins)
    merged = _merged(state.counts, growth)
    low, high = wide.add(merged, (of_batch, jnp.zeros_like(of_batch)))
    return Histogram(together, (low, high))


def exponent(range: Range, num_bins: int) -> jax.Array:
    """The k of the bins: the smallest that holds the range and for which the width of a bin is a normal number."""
    biased = jnp.maximum(*((float_bits.bits(bound) >> 23) & 0xFF for bound in range))
    least = _SUBNORMAL + _log2(num_bins)
    return jnp.where(observer.is_empty(range), least, jnp.maximum(biased + _SUBNORMAL, least))


def edges(range: Range, num_bins: int, index: ArrayLike) -> jax.Array:
    """Where the bin `index` begins, exactly; for an `index` with a fraction of 1/2, where its middle is."""
    width = significands.power_of_two(exponent(range, num_bins) + 1 - _log2(num_bins))
    return (jnp.asarray(index).astype(jnp.float32) - np.float32(num_bins // 2)) * width


def within(range: Range, low: jax.Array, high: jax.Array) -> Range:
    """``[low, high]``, cut off at the extreme numbers; if all numbers lie in one bin, their minimum."""
    seen = observer.or_zero(range)
    low = jnp.minimum(jnp.maximum(low, seen.min), seen.max)
    return Range(low, jnp.maximum(jnp.minimum(high, seen.max), low))


def cumulative(counts: wide.Words) -> wide.Words:
    """How many numbers there are up to and including each bin."""

    def add(total: wide.Words, count: wide.Words) -> tuple[wide.Words, wide.Words]:
        total = wide.add(total, count)
        return total, total

    # Sequential: a tree of sums takes longer to compile than this takes to run.
    return lax.scan(add, tuple(jnp.zeros_like(word[0]) for word in counts), counts)[1]


def _log2(num_bins: int) -> int:
    return num_bins.bit_length() - 1


def _counts(x: jax.Array, exponent: jax.Array, num_bins: int) -> jax.Array:
    """How many finite numbers lie in each bin. The index of a bin is computed in integers, so no rounding can change it."""
    biased, significand = significands.decompose(x)
    magnitude = jnp.where(biased == 0, 0, significand)  # zeros, and subnormal numbers, which are smaller than a bin
    signed = jnp.where(float_bits.bits(x) < 0, -magnitude, magnitude)
    shift = jnp.minimum(exponent - _SUBNORMAL - biased + (25 - _log2(num_bins)), 31)
    index = (signed >> shift) + num_bins // 2  # the shift rounds down, on both sides of 0
    index = jnp.where(observer.is_finite(x), index, num_bins)
    whole = jax.typeof(index).sharding.update(spec=PartitionSpec(None))  # one array of counts for all devices
    return jnp.zeros(num_bins, jnp.uint32).at[index].add(np.uint32(1), mode="drop", out_sharding=whole)


def _merged(counts: wide.Words, times: jax.Array) -> wide.Words:
    """The bins merged in pairs, `times` times. Once there is one on each side of 0, they stay."""
    (num_bins,) = counts[0].shape

    def merge(_: jax.Array, counts: wide.Words) -> wide.Words:
        pairs = wide.add(tuple(word[0::2] for word in counts), tuple(word[1::2] for word in counts))
        return tuple(jnp.pad(word, num_bins // 4) for word in pairs)

    return lax.fori_loop(0, jnp.minimum(times, _log2(num_bins)), merge, counts)
