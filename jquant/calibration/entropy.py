"""Finds the range with the smallest KL divergence between a distribution and its quantized form."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arguments.statics import integer
from jquant.arithmetic import exact, wide
from jquant.calibration.arithmetic import logarithm, pairwise_sum
from jquant.calibration.checks import checked_axis_name
from jquant.calibration.coarse import ChosenRange
from jquant.calibration.histogram import Histogram, checked_bins, cumulative, edges, histogram_observer, within
from jquant.calibration.observer import AxisName, Observer, Range

_NAME = "entropy"
_SMOOTHING = np.float32(1e-4)
_MOST_BITS = 31  # of the sum of the counts, which is then an int32
_EXHAUSTIVE = 2048  # the most bins for which every range is tried


def entropy(*, num_bins: int = 2048, num_quantized_bins: int = 128, axis_name: AxisName = None) -> Observer:
    """Observes the distribution, and chooses the range with the smallest KL divergence after binning.

    This suits activations whose distribution matters more than their largest values, such as the input of a classifier. Of
    the ranges around zero, it takes the one in which `num_quantized_bins` bins, like that many quantized values, represent
    the distribution best.

    The range of ``2 * r`` bins around zero has the KL divergence ``sum(P * log(P / Q))``. P are its counts, with the counts
    of the bins outside added to its first and last bin. Q are its counts merged into `num_quantized_bins` bins, and spread
    again over the nonempty bins of P. Both are smoothed and divided by their sums. Each r is tried, from
    ``num_quantized_bins / 2`` to ``num_bins / 2``. With more than 2,048 bins, let ``n = num_bins / 2048``: only every n-th r
    is tried, counted from the largest, and then those less than n away from the best of these. So the time grows in
    proportion to `num_bins`. Of the ranges with the smallest divergence, the narrowest is chosen. It is then limited to the
    smallest and the largest number.

    As in onnxruntime, Q consists of integers, rounded down; a range reaches one bin further above 0 than below; bins left
    over in the merging are added to the last. Each step is rounded once in float32, and sums have a fixed order. The result
    does not change by a bit with the order of the batches, with how they are split, or with the platform.

    No range is tried that has fewer than `num_quantized_bins` bins. If one number is so much larger than the others that
    these lie in fewer bins, the range is too wide: `compute_range` warns if the range cuts off numbers and, widened to
    include 0, is more than twice as wide as its bins that are not empty. No warning is possible if the state is traced.

    With 2**31 numbers or more, the counts are halved until their total is less. NaN and infinities are ignored; subnormal
    numbers count as 0.

    Args:
      num_bins: a power of two, from 4 to 65,536. The bins divide ``[-2**k, 2**k)``, with the smallest k that holds all
        numbers.
      num_quantized_bins: an even number, 2 to `num_bins`.
      axis_name: the axes of a `jax.shard_map` over which a batch is split. Not needed for any other use of a mesh.

    Returns:
      `Observer` of the whole batch, whose state is a `Histogram` of up to 2**64 - 1 numbers. To observe each channel, map
      its functions with `jax.vmap`.

    Raises:
      DescriptorError: a `num_bins` or `num_quantized_bins` out of range.
      DescriptorTypeError: an argument of the wrong type.

    Warns:
      UserWarning: `compute_range`, as described above.

    Example:
      >>> import jax, jax.numpy as jnp, jquant
      >>> observer = jquant.calibration.entropy()
      >>> batch = jnp.append(jax.random.normal(jax.random.key(0), 10_000), 50.0)
      >>> low, high = observer.compute_range(observer.update(observer.init(), batch))
      >>> bool(-6 < low < -2), bool(2 < high < 6)
      (True, True)

    References:
      onnxruntime, `EntropyCalibrater`, whose bins divide ``[-t, t]``, where t is the largest magnitude of the first batch;
      with its default of 128 bins, there is only one range to choose.
    """
    num_bins = checked_bins(_NAME, num_bins)
    allowed = f"even, from 2 to num_bins, {num_bins}"
    num_quantized_bins = integer(_NAME, "num_quantized_bins", num_quantized_bins, range(2, num_bins + 1, 2), allowed)
    return _entropy(num_bins, num_quantized_bins, checked_axis_name(_NAME, axis_name))


@functools.cache
def _entropy(num_bins: int, num_quantized_bins: int, axis_name: AxisName) -> Observer:
    zero = num_bins // 2

    def bounds(threshold: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The bins of a range: the first, and the one past the last."""
        return zero - threshold, jnp.minimum(zero + threshold + 1, num_bins)

    def compute_range(state: Histogram) -> Range:
        counts = _in_one_word(state.counts)

        def best(thresholds: jax.Array) -> jax.Array:
            divergences = lax.map(lambda threshold: _divergence(counts, *bounds(threshold), num_quantized_bins), thresholds)
            return thresholds[jnp.argmin(divergences)]

        least, step = num_quantized_bins // 2, max(1, num_bins // _EXHAUSTIVE)
        threshold = best(jnp.arange(least + (zero - least) % step, zero + 1, step, dtype=jnp.int32))
        if step > 1:
            threshold = best(jnp.clip(threshold + jnp.arange(1 - step, step, dtype=jnp.int32), least, zero))
        return within(state.range, *(edges(state.range, num_bins, index) for index in bounds(threshold)))

    return histogram_observer(_NAME, num_bins, axis_name, compute_range, _why_too_coarse)


def _why_too_coarse(chosen: ChosenRange) -> str | None:
    """Why the range is too wide, if it is: ranges with fewer bins than quantized bins are not tried."""
    first, end = math.floor(chosen.low / chosen.bin_width), math.ceil(chosen.high / chosen.bin_width)
    half = chosen.counts.size // 2
    filled = np.flatnonzero(chosen.counts[half + first : half + end]) + first
    if not filled.size:
        return None
    low = max(filled[0] * chosen.bin_width, chosen.min)
    high = min((filled[-1] + 1) * chosen.bin_width, chosen.max)
    if chosen.range_width <= 2 * (max(high, 0) - min(low, 0)):
        return None
    return f"the numbers that it holds lie between {low:.4g} and {high:.4g}, less than half of it"


def _in_one_word(counts: wide.Words) -> jax.Array:
    """The counts as int32, halved until their sum is an int32 as well."""
    total = tuple(word[-1] for word in cumulative(counts))
    halvings = jnp.maximum(0, 64 - _MOST_BITS - wide.leading_zeros(total))
    return wide.shift_right(counts, jnp.full(counts[0].shape, halvings))[0].astype(jnp.int32)


def _divergence(counts: jax.Array, start: jax.Array, end: jax.Array, num_quantized_bins: int) -> jax.Array:
    """The KL divergence of merging the bins from `start` to `end`; infinite if all merged counts round down to 0."""
    index = jnp.arange(counts.size, dtype=jnp.int32)
    inside = (start <= index) & (index < end)
    before = _prefix_sums(counts)
    outside = jnp.where(index == start, before[start], 0) + jnp.where(index == end - 1, before[-1] - before[end], 0)
    p = jnp.where(inside, counts, 0) + outside

    width = (end - start) // num_quantized_bins
    part = (index - start) // width
    first = jnp.clip(start + part * width, 0, counts.size)
    last = jnp.clip(first + width, 0, counts.size)
    filled_before = _prefix_sums((p != 0).astype(jnp.int32))
    filled = filled_before[last] - filled_before[first]
    joined = jnp.where(part == num_quantized_bins - 1, before[end], before[last]) - before[first]
    spread = inside & (part < num_quantized_bins) & (filled > 0)
    q = jnp.where(spread, joined // jnp.maximum(filled, 1), 0)
    return _kl_divergence(p, q, inside)


def _prefix_sums(counts: jax.Array) -> jax.Array:
    """The sum of the counts before each bin, followed by the sum of all counts."""
    return jnp.concatenate([jnp.zeros(1, counts.dtype), jnp.cumsum(counts, dtype=counts.dtype)])


def _kl_divergence(p: jax.Array, q: jax.Array, inside: jax.Array) -> jax.Array:
    """``sum(P * log(P / Q))`` of the counts inside, smoothed and divided by their sums."""
    p, q = _smoothed(p, inside), _smoothed(q, inside)
    defined = jnp.all((p > 0) & (q > 0) | ~inside)
    p, q = (jnp.where(defined, x, jnp.float32(1)) for x in (p, q))  # no division by 0 where the result is infinite
    p, q = (exact.quotient(x, jnp.broadcast_to(pairwise_sum(x), x.shape)) for x in (p, q))
    p, q = (jnp.where(inside, x, jnp.float32(1)) for x in (p, q))
    terms = exact.product(p, logarithm(exact.quotient(p, q)))
    return jnp.where(defined, pairwise_sum(jnp.where(inside, terms, jnp.float32(0))), jnp.inf)


def _smoothed(counts: jax.Array, inside: jax.Array) -> jax.Array:
    """The counts, of which those of 0 get a little, taken evenly from the others; 0 outside, and if nothing can be taken."""
    zeros = jnp.sum(inside & (counts == 0), dtype=jnp.int32).astype(jnp.float32)
    others = jnp.sum(inside & (counts != 0), dtype=jnp.int32).astype(jnp.float32)
    taken = exact.product(jnp.float32(_SMOOTHING), exact.quotient(zeros, jnp.maximum(others, 1)))
    smoothed = jnp.where(counts == 0, _SMOOTHING, exact.difference(counts.astype(jnp.float32), taken))
    return jnp.where(inside & (others > 0) & (taken < 1), smoothed, 0)
