"""The operators of TensorFlow."""

import functools

import numpy as np

import jquant
from cases.case import CHANNELS, Case, floats
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
}
