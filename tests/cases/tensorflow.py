"""The operators of TensorFlow."""

import functools

import numpy as np
import samples

import jquant
from cases.case import CHANNELS, ROWS, Case, floats
from jquant import reference


def draw_with_range(rng, sizes=()):
    """Values, and the bounds of one range or of one for each channel."""
    low, high = rng.uniform(-6, -5, sizes), rng.uniform(6, 7, sizes)
    return floats(rng, 11.8 / 255), np.asarray(low, np.float32), np.asarray(high, np.float32)


def draw_with_ranges(rng):
    return draw_with_range(rng, CHANNELS)


def quantize(mode: str, axis: int | None = None, **options) -> Case:
    def formula(*arguments):
        return jquant.QuantizeOutput(*reference.quantize(*arguments, np.int8, mode, **options))

    function = functools.partial(jquant.quantize, dtype="qint8", mode=mode, axis=axis, **options)
    return Case(function, formula, draw_with_range if axis is None else draw_with_ranges)


def draw_accumulators(rng):
    """Integers of every magnitude."""
    return samples.integers(rng, np.int32, ROWS, CHANNELS) >> rng.integers(0, 31, (ROWS, CHANNELS), np.int32)


def dequantize(mode: str, axis: int | None = None, **options) -> Case:
    options |= {"mode": mode, "axis": axis}
    return Case(
        functools.partial(jquant.dequantize, **options),
        functools.partial(reference.dequantize, **options),
        lambda rng: (
            samples.integers(rng, np.int8, ROWS, CHANNELS),
            *draw_with_range(rng, () if axis is None else CHANNELS)[1:],
        ),
    )


def requantize(dtype: str) -> Case:
    def formula(*arguments):
        return jquant.QuantizeOutput(*reference.requantize(*arguments, np.dtype(dtype.removeprefix("q"))))

    def draw(rng):
        return (
            draw_accumulators(rng),
            *draw_with_range(rng)[1:],
            np.float32(rng.uniform(-0.1, 0)),
            np.float32(rng.uniform(0, 0.1)),
        )

    return Case(functools.partial(jquant.requantize, dtype=dtype), formula, draw)


def per_channel(function, formula, output, *, collectives=(), requested=False) -> Case:
    def draw(rng):
        bounds = (np.float32(rng.uniform(-0.3, -0.1)), np.float32(rng.uniform(0.1, 0.3))) if requested else ()
        return draw_accumulators(rng), *draw_with_ranges(rng)[1:], *bounds

    return Case(function, lambda *arguments: output(*formula(*arguments)), draw, collectives=collectives)


def of_actual_range(function, formula, output) -> Case:
    def draw(rng):
        return draw_accumulators(rng), *draw_with_range(rng)[1:]

    return Case(function, lambda *arguments: output(*formula(*arguments)), draw, collectives=("all-reduce", "all-reduce"))


CASES: dict[str, Case] = {
    "quantize, MIN_COMBINED": quantize("MIN_COMBINED"),
    "quantize, MIN_FIRST": quantize("MIN_FIRST"),
    "quantize, SCALED": quantize("SCALED"),
    "quantize, SCALED, half to even": quantize("SCALED", round_mode="HALF_TO_EVEN", narrow_range=True),
    "quantize, SCALED, axis": quantize("SCALED", axis=1),
    "quantize_and_dequantize": Case(jquant.quantize_and_dequantize, reference.quantize_and_dequantize, draw_with_range),
    "quantize_and_dequantize, half up, axis": Case(
        functools.partial(jquant.quantize_and_dequantize, round_mode="HALF_UP", axis=1),
        functools.partial(reference.quantize_and_dequantize, round_mode="HALF_UP", axis=1),
        draw_with_ranges,
    ),
    "fake_quantize": Case(jquant.fake_quantize, reference.fake_quantize, draw_with_range),
    "fake_quantize, axis": Case(
        functools.partial(jquant.fake_quantize, axis=1), functools.partial(reference.fake_quantize, axis=1), draw_with_ranges
    ),
    "dequantize, MIN_COMBINED": dequantize("MIN_COMBINED"),
    "dequantize, MIN_FIRST": dequantize("MIN_FIRST"),
    "dequantize, SCALED, axis": dequantize("SCALED", axis=1),
    "requantize, quint8": requantize("quint8"),
    "requantize, qint8": requantize("qint8"),
    "requantization_range": of_actual_range(jquant.requantization_range, reference.requantization_range, jquant.RangeOutput),
    "quantize_down_and_shrink_range": of_actual_range(
        jquant.quantize_down_and_shrink_range, reference.quantize_down_and_shrink_range, jquant.QuantizeOutput
    ),
    "requantization_range_per_channel": per_channel(
        jquant.requantization_range_per_channel,
        reference.requantization_range_per_channel,
        jquant.RangeOutput,
        collectives=("all-reduce", "all-reduce"),
    ),
    "requantize_per_channel": per_channel(
        functools.partial(jquant.requantize_per_channel, dtype="qint8"),
        functools.partial(reference.requantize_per_channel, dtype=np.int8),
        jquant.QuantizeOutput,
        requested=True,
    ),
}
