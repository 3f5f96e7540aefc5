"""Finds the range with the smallest mean squared error of quantization."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from jquant.arguments.statics import boolean, quantized_data_type
from jquant.arithmetic import exact, significands
from jquant.calibration.arithmetic import pairwise_sum
from jquant.calibration.checks import checked_axis_name
from jquant.calibration.coarse import ChosenRange
from jquant.calibration.extremes import or_zero
from jquant.calibration.histogram import Histogram, checked_bins, edges, exponent, histogram_observer
from jquant.calibration.observer import AxisName, Observer, Range
from jquant.formulas import affine
from jquant.formulas.scale_and_zero_point import quantization_parameters
from jquant.quantized_tensor import Quantized

_NAME = "mean_squared_error"
_MOST_INTEGERS = 256  # 16-bit integers have more than the bins can resolve, and a negligible error of rounding
_SYMMETRIC_PARTS = 1024  # that a range is divided into, if both its ends are searched together
_PARTS = 32  # that each side of a range is divided into, if its ends are searched independently


def mean_squared_error(
    dtype: DTypeLike | str,
    /,
    *,
    symmetric: bool = False,
    narrow_range: bool = False,
    num_bins: int = 2048,
    axis_name: AxisName = None,
) -> Observer:
    """Observes the distribution, and finds the range with which `quantize_linear` loses least.

    It minimizes ``sum(count * (dequantized(quantized(x)) - x) ** 2)`` over the bins, where x is the middle of a bin. The
    scale and the zero point are those that `scale_and_zero_point` computes from a range with these arguments.

    ``[min, max]`` is first widened to include 0. The ranges tried are ``[i * min / 32, j * max / 32]`` for i and j from 0 to
    32, then those around the best of them in steps of 1/512. With `symmetric`, they are ``[-t, t]`` with
    ``t = i * max(-min, max) / 1024``. Each step is rounded once in float32, and sums have a fixed order. The result does not
    change by a bit with the order of the batches, with how they are split, or with the platform.

    The error of rounding is known only if the bins are narrower than the steps between the integers. `compute_range` warns
    if the range cuts off numbers and, widened to include 0, is narrower than as many bins as `dtype` has integers, at most
    256. No warning is possible if the state is traced.

    NaN and infinities are ignored; subnormal numbers count as 0.

    Args:
      dtype, symmetric, narrow_range: as in `scale_and_zero_point`.
      num_bins: a power of two, from 4 to 65,536. Use at least 8 times as many as `dtype` has integers, and more if a few
        numbers are much larger than the others.
      axis_name: the axes of a `jax.shard_map` over which a batch is split. Not needed for any other use of a mesh.

    Returns:
      `Observer` of the whole batch, whose state is a `Histogram` of up to 2**64 - 1 numbers. To observe each channel, map
      its functions with `jax.vmap`.

    Raises:
      DescriptorError: a `num_bins` out of range.
      DescriptorTypeError: a `dtype` that `scale_and_zero_point` does not support, or an argument of the wrong type.

    Warns:
      UserWarning: `compute_range`, as described above.

    Example:
      >>> import jax.numpy as jnp, jquant
      >>> observer = jquant.calibration.mean_squared_error("UINT4")
      >>> batch = jnp.append(jnp.linspace(0, 1, 100_000), 8)  # the last one is worth losing
      >>> low, high = observer.compute_range(observer.update(observer.init(), batch))
      >>> bool(low == 0), bool(0.9 < high < 1.1)
      (True, True)

    References:
      PyTorch, `torch.ao.quantization.HistogramObserver`, which searches one end at a time, with an estimate of the error.
    """
    dtype = quantized_data_type(_NAME, dtype)
    symmetric = boolean(_NAME, "symmetric", symmetric)
    narrow_range = boolean(_NAME, "narrow_range", narrow_range)
    num_bins = checked_bins(_NAME, num_bins)
    return _mean_squared_error(dtype, symmetric, narrow_range, num_bins, checked_axis_name(_NAME, axis_name))


@functools.cache
def _mean_squared_error(
    dtype: np.dtype, symmetric: bool, narrow_range: bool, num_bins: int, axis_name: AxisName
) -> Observer:
    def compute_range(state: Histogram) -> Range:
        seen = or_zero(state.range)
        low, high = jnp.minimum(seen.min, 0), jnp.maximum(seen.max, 0)
        if symmetric:
            low, high = -jnp.maximum(-low, high), jnp.maximum(-low, high)
        x = edges(state.range, num_bins, np.arange(num_bins) + 0.5)
        # A scale that keeps the squares of large errors within float32.
        unit = significands.power_of_two(2 - exponent(state.range, num_bins))
        low_words, high_words = (words.astype(jnp.float32) for words in state.counts)
        weight = exact.sum(exact.product(high_words, jnp.full(num_bins, 2.0**32, jnp.float32)), low_words)

        def candidate(parts: jax.Array) -> Range:
            return Range(min=exact.product(low, parts[0]), max=exact.product(high, parts[1]))

        def error(parts: jax.Array) -> jax.Array:
            range = candidate(parts)
            parameters = quantization_parameters(*range, dtype, symmetric, narrow_range)
            rounded = affine.dequantize(Quantized(affine.quantize(x, parameters, dtype), *parameters))
            difference = exact.product(exact.difference(rounded, x), unit)
            squares = exact.product(exact.product(difference, difference), weight)
            return jnp.where(range.min == range.max, jnp.inf, pairwise_sum(squares))

        def best(parts: jax.Array, width: jax.Array) -> tuple[jax.Array, None]:
            """The best of the candidates around the best so far."""
            candidates = jnp.clip(parts[None] + offsets * width, 0, 1)
            return candidates[jnp.argmin(jax.vmap(error)(candidates))], None

        offsets, widths = map(jnp.asarray, _search_grid(symmetric))
        parts, _ = lax.scan(best, jnp.full(2, 0.5, jnp.float32), widths)
        return candidate(parts)

    return histogram_observer(_NAME, num_bins, axis_name, compute_range, functools.partial(_why_too_coarse, dtype))


def _why_too_coarse(dtype: np.dtype, chosen: ChosenRange) -> str | None:
    """Why the error of rounding is not known, if it is not: a bin, of which only the middle is rounded, is too wide."""
    integers = min(2 ** jnp.iinfo(dtype).bits, _MOST_INTEGERS)
    if chosen.range_width >= integers * chosen.bin_width:
        return None
    return f"a bin is wider than a step of {dtype.name}, so that the error of rounding is not known"


def _search_grid(symmetric: bool) -> tuple[np.ndarray, np.ndarray]:
    """The offsets of candidates from the best so far, rows for the lower and upper end; and their unit in each search."""
    offsets = np.linspace(-0.5, 0.5, (_SYMMETRIC_PARTS if symmetric else _PARTS) + 1)
    ends = (offsets, offsets) if symmetric else np.meshgrid(offsets, offsets, indexing="ij")
    widths = (1,) if symmetric else (1, 2 / _PARTS)
    return np.stack(ends, axis=-1).reshape(-1, 2).astype(np.float32), np.array(widths, np.float32)
