"""A histogram of a stream of numbers, whose bins need no first pass over the data, and do not depend on the order.

The bins divide ``[-2**k, 2**k)`` evenly, with the smallest k that holds all numbers so far. When k grows by 1, each new bin
joins two of the old bins: the result is the histogram of all numbers at the final k.
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
from jquant.calibration import coarse
from jquant.calibration.checks import float_batch, require_shape, require_state
from jquant.calibration.extremes import empty, extremes, is_empty, is_finite, or_zero, union
from jquant.calibration.observer import AxisName, Observer, Range
from jquant.placement import explain_array_errors_as

_ALLOWED_BINS = tuple(2**bits for bits in range(2, 17))
_SMALLEST_EXPONENT = -126  # of a normal float32


class Histogram(NamedTuple):
    """The state of an observer of the distribution.

    Attributes:
      range: the smallest and the largest number.
      counts: how many numbers are in each bin: the low and the high words of unsigned 64-bit integers.
    """

    range: Range
    counts: tuple[jax.Array, jax.Array]


export.register_namedtuple_serialization(Histogram, serialized_name="jquant.calibration.Histogram")


def checked_bins(name: str, num_bins: int) -> int:
    """`num_bins`, asserting that it is allowed. Called before a cache, in which 64 and 64.0 are the same key."""
    allowed = f"a power of two from {_ALLOWED_BINS[0]} to {_ALLOWED_BINS[-1]}"
    return integer(name, "num_bins", num_bins, _ALLOWED_BINS, allowed)


def histogram_observer(
    name: str, num_bins: int, axis_name: AxisName, compute_range: Callable[[Histogram], Range], check: coarse.Check
) -> Observer:
    """An observer whose state is a histogram.

    Args:
      name: of the observer, for messages.
      num_bins, axis_name: as in `percentile`.
      compute_range: computes the range of a histogram, which may be empty.
      check: says why the bins are too coarse for a range, if they are.
    """

    @jax.jit
    def empty_histogram() -> Histogram:
        counts = jnp.zeros(num_bins, jnp.uint32), jnp.zeros(num_bins, jnp.uint32)
        return Histogram(range=empty(), counts=counts)

    def init(batch: Any = None) -> Histogram:
        require_shape(name, batch)
        return empty_histogram()  # one histogram, whatever the shape

    like = jax.eval_shape(empty_histogram)
    jitted_compute_range = jax.jit(compute_range)

    @jax.jit
    def updated(state: Histogram, batch: jax.Array) -> Histogram:
        return _updated(state, exact.widen(batch), axis_name)

    @explain_array_errors_as(name)
    def update(state: Histogram, batch: ArrayLike) -> Histogram:
        batch = float_batch(name, "batch", batch)
        require_state(name, state, like)
        devices = 1 if axis_name is None else lax.axis_size(axis_name)
        if isinstance(batch.size, int):  # not a symbolic size of `jax.export`
            message = f"{name}: a batch has {batch.size * devices} elements; it must have fewer than 2**32"
            require(batch.size * devices < 2**32, message)
        return updated(state, batch)

    @explain_array_errors_as(name)
    def checked_range(state: Histogram) -> Range:
        require_state(name, state, like)
        range = jitted_compute_range(state)
        coarse.warn(name, state, range, check)
        return range

    return Observer(init=init, update=update, compute_range=checked_range)


def _updated(state: Histogram, x: jax.Array, axis_name: AxisName) -> Histogram:
    num_bins = state.counts[0].size
    range = union(state.range, extremes(x, None, axis_name))
    batch_counts = _counts(x, exponent(range, num_bins), num_bins)
    if axis_name is not None:
        batch_counts = lax.psum(batch_counts, axis_name)
    growth = exponent(range, num_bins) - exponent(state.range, num_bins)
    merged = _merged(state.counts, growth)
    low, high = wide.add(merged, (batch_counts, jnp.zeros_like(batch_counts)))
    return Histogram(range=range, counts=(low, high))


def exponent(range: Range, num_bins: int) -> jax.Array:
    """The smallest k for which the bins hold the range, and the width of a bin is a normal number."""
    biased = jnp.maximum(*((float_bits.bits(bound) >> 23) & 0xFF for bound in range))
    least = _SMALLEST_EXPONENT + _log2(num_bins)
    return jnp.where(is_empty(range), least, jnp.maximum(biased + _SMALLEST_EXPONENT, least))


def edges(range: Range, num_bins: int, index: ArrayLike) -> jax.Array:
    """The lower edge of the bin `index`, exactly; the middle of the bin for ``index + 0.5``."""
    width = significands.power_of_two(exponent(range, num_bins) + 1 - _log2(num_bins))
    return (jnp.asarray(index).astype(jnp.float32) - np.float32(num_bins // 2)) * width


def within(range: Range, low: jax.Array, high: jax.Array) -> Range:
    """``[low, high]``, limited to the numbers in `range`; their minimum, if `high` lies below it."""
    seen = or_zero(range)
    low = jnp.minimum(jnp.maximum(low, seen.min), seen.max)
    return Range(min=low, max=jnp.maximum(jnp.minimum(high, seen.max), low))


def cumulative(counts: wide.Words) -> wide.Words:
    """How many numbers are in each bin and those before it."""

    def add(total: wide.Words, count: wide.Words) -> tuple[wide.Words, wide.Words]:
        total = wide.add(total, count)
        return total, total

    # A sequential scan: a tree of sums takes longer to compile than the scan takes to run.
    return lax.scan(add, tuple(jnp.zeros_like(word[0]) for word in counts), counts)[1]


def _log2(num_bins: int) -> int:
    return num_bins.bit_length() - 1


def _counts(x: jax.Array, exponent: jax.Array, num_bins: int) -> jax.Array:
    """How many finite numbers are in each bin. The index of a bin is computed in integers, without any rounding."""
    biased, significand = significands.decompose(x)
    magnitude = jnp.where(biased == 0, 0, significand)  # 0 for subnormal numbers, which are smaller than a bin
    signed = jnp.where(float_bits.bits(x) < 0, -magnitude, magnitude)
    shift = jnp.minimum(exponent - _SMALLEST_EXPONENT - biased + (25 - _log2(num_bins)), 31)
    index = (signed >> shift) + num_bins // 2  # the shift rounds down, on both sides of 0
    index = jnp.where(is_finite(x), index, num_bins)
    replicated = jax.typeof(index).sharding.update(spec=PartitionSpec(None))  # each device has all counts
    return jnp.zeros(num_bins, jnp.uint32).at[index].add(np.uint32(1), mode="drop", out_sharding=replicated)


def _merged(counts: wide.Words, times: jax.Array) -> wide.Words:
    """The bins merged in pairs, `times` times. Once one bin is left on each side of 0, nothing changes."""
    (num_bins,) = counts[0].shape

    def merge(_: jax.Array, counts: wide.Words) -> wide.Words:
        pairs = wide.add(tuple(word[0::2] for word in counts), tuple(word[1::2] for word in counts))
        return tuple(jnp.pad(word, num_bins // 4) for word in pairs)

    return lax.fori_loop(0, jnp.minimum(times, _log2(num_bins)), merge, counts)
