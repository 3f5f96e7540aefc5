"""Cases of the operators of TensorFlow."""

import functools
import itertools
from typing import Any

import numpy as np

import jquant
from jquant.cases import samples
from jquant.cases.case import CHANNELS, Case
from jquant.reference import requantization
from jquant.reference import tensorflow as reference

AXIS = 1


def bounds(rng, axis: int | None) -> tuple[Any, Any]:
    """One range, or one for each channel: narrow and wide ones, one that ends at 0, and one that excludes it."""
    if axis is None:
        return np.float32(rng.uniform(-6, -5)), np.float32(rng.uniform(6, 7))
    low, high = np.array([[-1, -2.3, 0, -1e-3, -77], [1, 7, 3.3, 1e3, -1]], np.float32)
    factors = rng.uniform(0.9, 1.1, (2, CHANNELS)).astype(np.float32)
    return low * factors[0], high * factors[1]


def step_size(dtype, mode: str, low, high):
    """The distance between the real numbers of two consecutive integers."""
    limits = np.iinfo(dtype)
    low, high = np.minimum(low, 0).astype(np.float64), np.maximum(high, 0).astype(np.float64)
    if mode == "SCALED":
        return np.maximum(low / limits.min if limits.min else 0, high / limits.max)
    return (high - low) / (2.0**limits.bits - 1)


def quantize(dtype, mode: str, axis: int | None = None, **options: Any) -> Case:
    """`quantize`."""

    def draw(rng, rows):
        low, high = bounds(rng, axis)
        offset = np.minimum(low, np.float32(0)) if mode == "MIN_COMBINED" else 0
        x = samples.floats(rng, (rows, CHANNELS), step_size(dtype, mode, low, high), offset=offset)
        return x, low, high

    def formula(x, low, high):
        return jquant.QuantizeOutput._make(reference.quantize(x, low, high, dtype, mode, **options))

    return Case(functools.partial(jquant.quantize, dtype=dtype, mode=mode, axis=axis, **options), formula, draw)


def quantize_and_dequantize(**options: Any) -> Case:
    """`quantize_and_dequantize`."""

    def draw(rng, rows):
        low, high = bounds(rng, options.get("axis"))
        return samples.floats(rng, (rows, CHANNELS), step_size(np.int8, "SCALED", low, high)), low, high

    return Case(
        functools.partial(jquant.quantize_and_dequantize, **options),
        functools.partial(reference.quantize_and_dequantize, **options),
        draw,
    )


def fake_quantize_step(low, high):
    """The divisor of `fake_quantize`."""
    return (high - low) / np.float32(255)


def fake_quantize(axis: int | None = None) -> Case:
    """`fake_quantize`, which divides by the step of a single range, but multiplies by the reciprocals of several."""

    def draw(rng, rows):
        low, high = bounds(rng, axis)
        return samples.floats(rng, (rows, CHANNELS), fake_quantize_step(low, high)), low, high

    return Case(
        functools.partial(jquant.fake_quantize, axis=axis),
        functools.partial(reference.fake_quantize, axis=axis),
        draw,
        divisor=(lambda x, low, high: fake_quantize_step(low, high)) if axis is None else None,
    )


def dequantize(dtype, mode: str, axis: int | None = None) -> Case:
    """`dequantize`."""
    options = {"mode": mode, "axis": axis}
    return Case(
        functools.partial(jquant.dequantize, **options),
        functools.partial(requantization.dequantize, **options),
        lambda rng, rows: (samples.integers(rng, dtype, rows, CHANNELS), *bounds(rng, axis)),
    )


def draw_accumulators(rng, rows):
    """Integers of every magnitude."""
    return samples.integers(rng, np.int32, rows, CHANNELS) >> rng.integers(0, 31, (rows, CHANNELS), np.int32)


PYTHON_COST = 20  # of a formula in Python integers


def requantize(dtype, cost: int = 1) -> Case:
    """`requantize`."""

    def formula(x, low, high, new_low, new_high):
        return jquant.QuantizeOutput._make(requantization.requantize(x, low, high, new_low, new_high, dtype))

    def draw(rng, rows):
        requested = np.float32(rng.uniform(-0.1, 0)), np.float32(rng.uniform(0, 0.1))
        return draw_accumulators(rng, rows), *bounds(rng, None), *requested

    return Case(functools.partial(jquant.requantize, dtype=dtype), formula, draw, cost=cost)


def per_channel(function, formula, output_type, *, collectives=(), requested=False) -> Case:
    """An operator on accumulators with a range for each channel and, if `requested`, a range of the output."""

    def draw(rng, rows):
        low, high = bounds(rng, AXIS)
        output_range = (np.float32(rng.uniform(-0.3, -0.1)), np.float32(rng.uniform(0.1, 0.3))) if requested else ()
        return draw_accumulators(rng, rows), np.minimum(low, high), np.maximum(low, high), *output_range

    return Case(
        function,
        lambda *arguments: output_type(*formula(*arguments)),
        draw,
        collectives=collectives,
        elementwise=requested,
    )


def computed_range(function, formula, output_type, cost: int = 1) -> Case:
    """An operator that computes the range of its accumulators."""

    def draw(rng, rows):
        return draw_accumulators(rng, rows), *bounds(rng, None)

    collectives = ("all-reduce", "all-reduce")
    return Case(
        function,
        lambda *arguments: output_type(*formula(*arguments)),
        draw,
        collectives=collectives,
        cost=cost,
        elementwise=False,
    )


HALF_TO_EVEN: dict[str, Any] = {"round_mode": "HALF_TO_EVEN"}
CONFIGURATIONS: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "MIN_COMBINED": ("MIN_COMBINED", None, {}),
    "MIN_COMBINED, axis": ("MIN_COMBINED", AXIS, {}),
    "MIN_FIRST": ("MIN_FIRST", None, {}),
    "SCALED": ("SCALED", None, {}),
    "SCALED, axis": ("SCALED", AXIS, {}),
    "SCALED, half to even": ("SCALED", None, HALF_TO_EVEN),
    "SCALED, half to even, axis": ("SCALED", AXIS, HALF_TO_EVEN),
}

CASES: dict[str, Case] = {
    "quantize, MIN_COMBINED": quantize(np.int8, "MIN_COMBINED"),
    "quantize, MIN_FIRST": quantize(np.int8, "MIN_FIRST"),
    "quantize, SCALED": quantize(np.int8, "SCALED"),
    "quantize, SCALED, half to even": quantize(np.int8, "SCALED", **HALF_TO_EVEN, narrow_range=True),
    "quantize, SCALED, axis": quantize(np.int8, "SCALED", AXIS),
    "quantize_and_dequantize": quantize_and_dequantize(),
    "quantize_and_dequantize, half up, axis": quantize_and_dequantize(round_mode="HALF_UP", axis=AXIS),
    "fake_quantize": fake_quantize(),
    "fake_quantize, axis": fake_quantize(AXIS),
    "dequantize, MIN_COMBINED": dequantize(np.int8, "MIN_COMBINED"),
    "dequantize, MIN_FIRST": dequantize(np.int8, "MIN_FIRST"),
    "dequantize, SCALED, axis": dequantize(np.int8, "SCALED", AXIS),
    "requantize, quint8": requantize(np.uint8, PYTHON_COST),
    "requantize, qint8": requantize(np.int8),
    "requantization_range": computed_range(
        jquant.requantization_range, requantization.requantization_range, jquant.RangeOutput
    ),
    "quantize_down_and_shrink_range": computed_range(
        jquant.quantize_down_and_shrink_range,
        requantization.quantize_down_and_shrink_range,
        jquant.QuantizeOutput,
        PYTHON_COST,
    ),
    "requantization_range_per_channel": per_channel(
        jquant.requantization_range_per_channel,
        requantization.requantization_range_per_channel,
        jquant.RangeOutput,
        collectives=("all-reduce", "all-reduce"),
    ),
    "requantize_per_channel": per_channel(
        functools.partial(jquant.requantize_per_channel, dtype="qint8"),
        functools.partial(requantization.requantize_per_channel, dtype=np.int8),
        jquant.QuantizeOutput,
        requested=True,
    ),
}

VARIANTS: dict[str, Case] = {
    **{
        f"quantize, {np.dtype(dtype)}, {name}": quantize(dtype, mode, axis, **options)
        for dtype, (name, (mode, axis, options)) in itertools.product(
            (np.int8, np.uint8, np.int16, np.uint16, np.int32), CONFIGURATIONS.items()
        )
        if dtype is not np.int8 or axis or options  # the others are above
    },
    "quantize_and_dequantize, axis": quantize_and_dequantize(axis=AXIS),
    "quantize_and_dequantize, half up, axis, one-sided": quantize_and_dequantize(round_mode="HALF_UP", axis=AXIS),
    "quantize_and_dequantize, half up": quantize_and_dequantize(round_mode="HALF_UP"),
    "quantize_and_dequantize, own range": Case(
        jquant.quantize_and_dequantize,
        reference.quantize_and_dequantize,
        lambda rng, rows: (np.nan_to_num(samples.floats(rng, (rows, CHANNELS), 1)).clip(-128, 127),),
    ),
    **{
        f"dequantize, {np.dtype(dtype)}, {name}": dequantize(dtype, mode, axis)
        for dtype, (name, (mode, axis, options)) in itertools.product((np.int8, np.uint16, np.int32), CONFIGURATIONS.items())
        if not options and not (dtype is np.int8 and f"dequantize, {name}" in CASES)
    },
    "requantize_per_channel, uint8": per_channel(
        jquant.requantize_per_channel,
        functools.partial(requantization.requantize_per_channel, dtype=np.uint8),
        jquant.QuantizeOutput,
        requested=True,
    ),
}
