"""Finds the range that holds all but a share of the numbers."""

import fractions
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arguments.statics import boolean, number
from jquant.arithmetic import wide
from jquant.calibration.checks import checked_axis_name
from jquant.calibration.coarse import ChosenRange
from jquant.calibration.histogram import Histogram, checked_bins, cumulative, edges, histogram_observer, within
from jquant.calibration.observer import AxisName, Observer, Range

_NAME = "percentile"
_TOLERANCE = 1 / 64  # of the range: less than 4 steps of an 8-bit integer
_LARGEST_DENOMINATOR = 10**7  # of a percentage; times 100, and 2 for one end, it fits in 32 bits


def percentile(
    percentile: float = 99.999,
    /,
    *,
    symmetric: bool = False,
    num_bins: int = 2048,
    axis_name: AxisName = None,
) -> Observer:
    """Observes the distribution, and cuts the tails off.

    For a `percentile` P, ``(100 - P) / 2`` per cent are cut at each end or, with `symmetric`, ``100 - P`` by magnitude.
    An end of the range is the lower edge of the first bin at which the numbers up to and including that bin reach the share
    that is to lie below. The range is then limited to the smallest and the largest number.

    The bins divide ``[-2**k, 2**k)``, with the smallest k that holds all numbers: the true percentile lies less than
    ``2**(k + 1) / num_bins`` above that edge. Shares are compared in integers, with P taken as a decimal fraction of at most
    seven digits after the point. The result does not change by a bit with the order of the batches, or with how they are
    split.

    So one number that is much larger than the others can make the bins too wide. Let w be the width of the range, widened
    to include 0. `compute_range` warns if the upper end (with `symmetric`, both) may cut off more than twice the share, and
    be more than w / 64 too low; and if the lower end may be w / 2 or more too low. Numbers on the edge itself, such as the
    zeros of a sparse activation, count as cut off. No warning is possible if the state is traced.

    NaN and infinities are ignored; subnormal numbers count as 0.

    Args:
      percentile: from 0 to 100.
      symmetric: whether to cut by magnitude. The range that is left ends at the extreme numbers, and need not be symmetric.
      num_bins: a power of two, from 4 to 65,536.
      axis_name: the axes of a `jax.shard_map` over which a batch is split. Not needed for any other use of a mesh.

    Returns:
      `Observer` of the whole batch, whose state is a `Histogram` of up to 2**64 - 1 numbers. To observe each channel, map
      its functions with `jax.vmap`.

    Raises:
      DescriptorError: a `percentile` or `num_bins` out of range.
      DescriptorTypeError: an argument of the wrong type.

    Warns:
      UserWarning: `compute_range`, as described above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> observer = jquant.calibration.percentile(90)
      >>> state = observer.init()
      >>> for batch in (jnp.arange(50.0), jnp.arange(50.0, 100.0)):
      ...     state = observer.update(state, batch)
      >>> print(*observer.compute_range(state))
      4.0 94.0

    References:
      onnxruntime, `PercentileCalibrater`, whose bins divide ``[-t, t]``, t being the largest magnitude of the first batch.
    """
    percentile = number(_NAME, "percentile", percentile, 0, 100)
    symmetric = boolean(_NAME, "symmetric", symmetric)
    num_bins = checked_bins(_NAME, num_bins)
    return _percentile(percentile, symmetric, num_bins, checked_axis_name(_NAME, axis_name))


@functools.cache
def _percentile(percentile: float, symmetric: bool, num_bins: int, axis_name: AxisName) -> Observer:
    share = fractions.Fraction(percentile).limit_denominator(_LARGEST_DENOMINATOR) / 100
    half = num_bins // 2

    def compute_range(state: Histogram) -> Range:
        if symmetric:
            lower, upper = tuple(word[:half][::-1] for word in state.counts), tuple(word[half:] for word in state.counts)
            high = _first_reaching(share, wide.add(lower, upper)) + half
            low = num_bins - high
        else:
            low, high = (_first_reaching(part, state.counts) for part in ((1 - share) / 2, (1 + share) / 2))
        return within(state.range, *(edges(state.range, num_bins, index) for index in (low, high)))

    check = functools.partial(_why_too_coarse, share, symmetric)
    return histogram_observer(_NAME, num_bins, axis_name, compute_range, check)


def _why_too_coarse(share: fractions.Fraction, symmetric: bool, chosen: ChosenRange) -> str | None:
    """Why the range may be far from the percentile, if it may: its ends are the lower edges of their bins.

    So the upper end may cut off a whole bin too much, and the lower end a whole bin too little.
    """
    counts, width, half = chosen.counts, chosen.bin_width, chosen.counts.size // 2
    end, largest, to_cut = chosen.high, chosen.max, float(1 - share) / 2
    if symmetric:
        end = chosen.high if chosen.high < chosen.max else -chosen.low
        largest, to_cut = max(chosen.max, -chosen.min), float(1 - share)
        counts, half = counts[half:] + counts[:half][::-1], 0
    first_cut, where = math.floor(end / width), "at both ends" if symmetric else "at its upper end"
    cut = float(counts[half + first_cut :].sum()) / float(counts.sum())
    if min((first_cut + 1) * width, largest) - end > chosen.range_width * _TOLERANCE and cut > 2 * to_cut:
        return f"it cuts off up to {100 * cut:.3g} % of the numbers {where}, where {100 * to_cut:.3g} % were to be"
    spare = min((math.floor(chosen.low / width) + 1) * width, chosen.max, 0) - chosen.low
    if spare > 0 and spare >= chosen.range_width / 2 and not symmetric:
        return f"its lower end is up to {spare:.4g} too low, half of the range or more"
    return None


def _first_reaching(share: fractions.Fraction, counts: wide.Words) -> jax.Array:
    """The index of the first bin at which the numbers up to and including that bin reach the share."""
    sums = cumulative(counts)
    total = tuple(jnp.broadcast_to(word[-1], word.shape) for word in sums)
    have = wide.product(jnp.uint32(share.denominator), sums)
    need = wide.product(jnp.uint32(share.numerator), total)
    return jnp.sum(wide.is_negative(wide.add(have, wide.negate(need))), dtype=np.int32)
