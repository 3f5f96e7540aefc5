"""The quantized functions of com.microsoft, and pooling."""

import functools

import numpy as np
import samples

import jquant
from cases.case import CHANNELS, ROWS, Case, scales
from jquant import reference


def draw(rng, dtype, *sizes):
    """A quantized tensor of some rows and of scales that use the output's range, and how the output is quantized."""
    x = samples.integers(rng, dtype, ROWS, *sizes), scales(rng), samples.integers(rng, dtype)
    return *x, np.float32(rng.uniform(1, 2) / 256), samples.integers(rng, dtype)


POOLING = {"window_sizes": (3, 2), "strides": (2, 1), "dilations": (1, 2), "padding": ((1, 1), (0, 2))}


def draw_for_each_channel(rng):
    """For pooling: input and output quantized by channels."""
    sizes = 1, CHANNELS, 1, 1
    x = samples.integers(rng, np.int8, ROWS, CHANNELS, 7, 6), scales(rng, *sizes), samples.integers(rng, np.int8, *sizes)
    return *x, scales(rng, *sizes), samples.integers(rng, np.uint8, *sizes)


CASES: dict[str, Case] = {
    "quantized_linear_sigmoid": Case(
        jquant.quantized_linear_sigmoid,
        reference.quantized_linear_sigmoid,
        lambda rng: draw(rng, np.uint8, CHANNELS),
    ),
    "quantized_linear_softmax": Case(
        functools.partial(jquant.quantized_linear_softmax, axis=1),
        functools.partial(reference.quantized_linear_softmax, axis=1),
        lambda rng: draw(rng, np.int8, CHANNELS),
    ),
    "quantized_linear_average_pool": Case(
        functools.partial(jquant.quantized_linear_average_pool, **POOLING),
        functools.partial(reference.quantized_linear_average_pool, **POOLING, include_padding=False, dtype=np.uint8),
        draw_for_each_channel,
    ),
    "quantized_linear_global_average_pool": Case(
        jquant.quantized_linear_global_average_pool,
        reference.quantized_linear_global_average_pool,
        lambda rng: draw(rng, np.uint8, CHANNELS, 3, 4),
    ),
}
