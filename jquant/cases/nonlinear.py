"""Cases of quantized sigmoid, softmax and average pooling."""

import functools
import itertools

import numpy as np

import jquant
from jquant.cases import samples
from jquant.cases.case import CHANNELS, Case
from jquant.reference import nonlinear as reference

FLOAT64_COST = 4  # of a formula with float64 exponentials


def draw(rng, dtype, *sizes):
    """A quantized tensor, and the scale and zero point of an output that uses the whole range of `dtype`."""
    return (
        samples.integers(rng, dtype, *sizes),
        samples.small_scales(rng),
        samples.integers(rng, dtype),
        np.float32(rng.uniform(1, 2) / 256),
        samples.integers(rng, dtype),
    )


def output_scale(x, x_scale, x_zero_point, y_scale, y_zero_point):
    return y_scale


def sigmoid(dtype) -> Case:
    return Case(
        jquant.quantized_linear_sigmoid,
        reference.quantized_linear_sigmoid,
        lambda rng, rows: draw(rng, dtype, rows, CHANNELS),
        divisor=output_scale,
        cost=FLOAT64_COST,
    )


def softmax(dtype, *sizes: int) -> Case:
    return Case(
        functools.partial(jquant.quantized_linear_softmax, axis=1),
        functools.partial(reference.quantized_linear_softmax, axis=1),
        lambda rng, rows: draw(rng, dtype, rows, *sizes),
        divisor=output_scale,
        cost=FLOAT64_COST,
        elementwise=False,
    )


WINDOWS = {"window_sizes": (3, 2), "strides": (2, 1), "dilations": (1, 2), "padding": ((1, 1), (0, 2))}


def average_pool(draw, dtype) -> Case:
    return Case(
        functools.partial(jquant.quantized_linear_average_pool, **WINDOWS),
        functools.partial(reference.quantized_linear_average_pool, **WINDOWS, include_padding=False, dtype=dtype),
        draw,
        divisor=output_scale,
        elementwise=False,
    )


def draw_per_channel(rng, rows):
    """Input and output quantized per channel."""
    sizes = 1, CHANNELS, 1, 1
    scales, zero_points = samples.small_scales(rng, *sizes), samples.integers(rng, np.int8, *sizes)
    x = samples.integers(rng, np.int8, rows, CHANNELS, 7, 6)
    return x, scales, zero_points, samples.small_scales(rng, *sizes), samples.integers(rng, np.uint8, *sizes)


def global_average_pool(dtype) -> Case:
    return Case(
        jquant.quantized_linear_global_average_pool,
        reference.quantized_linear_global_average_pool,
        lambda rng, rows: draw(rng, dtype, rows, CHANNELS, 3, 4),
        divisor=output_scale,
        elementwise=False,
    )


CASES: dict[str, Case] = {
    "quantized_linear_sigmoid": sigmoid(np.uint8),
    "quantized_linear_softmax": softmax(np.int8, CHANNELS),
    "quantized_linear_average_pool": average_pool(draw_per_channel, np.uint8),
    "quantized_linear_global_average_pool": global_average_pool(np.uint8),
}

VARIANTS: dict[str, Case] = {
    "quantized_linear_sigmoid, int8": sigmoid(np.int8),
    **{
        f"quantized_linear_softmax, {np.dtype(dtype)}, {name}": softmax(dtype, *sizes)
        for dtype, (name, sizes) in itertools.product(
            (np.int8, np.uint8), {"last of two": (300,), "middle of three": (25, 8)}.items()
        )
    },
    **{
        f"quantized_linear_average_pool, {np.dtype(dtype)}": average_pool(
            lambda rng, rows, dtype=dtype: draw(rng, dtype, rows, CHANNELS, 7, 6), dtype
        )
        for dtype in (np.int8, np.uint8)
    },
    "quantized_linear_global_average_pool, int8": global_average_pool(np.int8),
}
