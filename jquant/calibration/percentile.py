"""The range that all but a share of the numbers lie in"""

import fractions
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arguments.statics import boolean, number
from jquant.arithmetic import wide
from jquant.calibration.histogram import Histogram, checked_bins, cumulative, edges, histogram_observer, within
from jquant.calibration.observer import AxisName, Observer, Range, checked_axis_name

_NAME = "percentile"
_LARGEST_DENOMINATOR = 10**7  # with that of a percentage, and of a half, it is a word


def percentile(
    percentile: float = 99.999,
    /,
    *,
    symmetric: bool = False,
    num_bins: int = 2048,
    axis_name: AxisName = None,
) -> Observer:
    """Observes the distribution, and cuts the tails off.

    Of a `percentile` P, ``(100 - P) / 2`` per cent are cut at each end; `symmetric`: ``100 - P`` per cent, by magnitude.
    An end of the range is the lower edge of the first bin up to which the numbers are the share that is to lie below it.
    It goes no further than the smallest and the largest number.

    The bins divide ``[-2**k, 2**k)``, k the smallest that holds all numbers: the true percentile lies less than
    ``2**(k + 1) / num_bins`` above. Shares are compared in integers, P taken for a fraction of decimal digits, seven
    after the point at most. Neither the order of the batches, nor how they are split, changes a bit.

    NaN and infinities are passed over; subnormal numbers count as 0.

    Args:
      percentile: from 0 to 100.
      symmetric: cut by magnitude. The range that is left ends where the numbers do, and need not be symmetric.
      num_bins: a power of two, from 4 to 65,536.
      axis_name: the axes of a `jax.shard_map` over which a batch is split. Elsewhere a mesh needs no mention.

    Returns:
      `Observer` of the whole of a batch, whose state is a `Histogram` of up to 2**64 - 1 numbers. For an observer of each
      channel, map its functions with `jax.vmap`.

    Raises:
      DescriptorError: a `percentile` or `num_bins` outside of these.
      DescriptorTypeError: an argument of another type.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> observer = jquant.calibration.percentile(90)
      >>> state = observer.init()
      >>> for batch in (jnp.arange(50.0), jnp.arange(50.0, 100.0)):
      ...     state = observer.update(state, batch)
      >>> print(*observer.compute_range(state))
      4.0 94.0

    References:
      onnxruntime, `PercentileCalibrater`, whose bins divide ``[-t, t]``, t the largest magnitude of the first batch.
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

    return histogram_observer(_NAME, num_bins, axis_name, compute_range)


def _first_reaching(share: fractions.Fraction, counts: wide.Words) -> jax.Array:
    """The index of the first bin up to which at least that share of the numbers lies."""
    sums = cumulative(counts)
    total = tuple(jnp.broadcast_to(word[-1], word.shape) for word in sums)
    have = wide.product(jnp.uint32(share.denominator), sums)
    need = wide.product(jnp.uint32(share.numerator), total)
    return jnp.sum(wide.is_negative(wide.add(have, wide.negate(need))), dtype=np.int32)
