"""The convolutions of DirectML and ONNX."""

import functools

import numpy as np
import samples

import jquant
from cases.case import ROWS, Case, scales
from jquant import reference

CHANNELS, FILTERS, SIZE = 4, 6, 7
WINDOWS = {"strides": (2, 1), "padding": ((1, 0), (1, 1)), "dilations": (1, 2)}


def draw(rng, groups=1):
    """The input of uint8, the filter of int8, with a scale and a zero point for each filter."""
    return (
        *(samples.integers(rng, np.uint8, ROWS, CHANNELS, SIZE, SIZE), scales(rng), samples.integers(rng, np.uint8)),
        *(samples.integers(rng, np.int8, FILTERS, CHANNELS // groups, 3, 2), scales(rng, FILTERS)),
        samples.integers(rng, np.int8, FILTERS),
    )


def draw_integers(rng):
    x, _, x_zero_point, w, _, w_zero_point = draw(rng)
    return x, w, x_zero_point, w_zero_point


def draw_quantized(rng, groups=1):
    bias = rng.integers(-(10**5), 10**5, (1, FILTERS, 1, 1), np.int32)
    return *draw(rng, groups), np.float32(rng.uniform(1, 9)), samples.integers(rng, np.int8), bias


CASES: dict[str, Case] = {
    "convolution_integer": Case(
        functools.partial(jquant.convolution_integer, **WINDOWS),
        functools.partial(reference.convolution_integer, **WINDOWS),
        draw_integers,
    ),
    "quantized_linear_convolution": Case(
        functools.partial(jquant.quantized_linear_convolution, **WINDOWS),
        functools.partial(reference.quantized_linear_convolution, **WINDOWS, dtype=np.int8),
        draw_quantized,
    ),
}
