"""Cases of the convolutions of DirectML and ONNX."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

import jquant
from jquant.cases import samples
from jquant.cases.case import Case
from jquant.reference import convolutions as reference

FILTERS, SIZE = 4, 7
CHANNELS_LAST = "NHWC", "HWIO", "NHWC"
WINDOWS = {"strides": (2, 1), "padding": ((1, 0), (1, 1)), "dilations": (1, 2)}


def draw(rng, rows, channels, groups):
    """A uint8 input and an int8 filter, with a scale and a zero point for each filter."""
    return (
        samples.integers(rng, np.uint8, rows, channels, SIZE, SIZE),
        samples.small_scales(rng),
        samples.integers(rng, np.uint8),
        samples.integers(rng, np.int8, FILTERS, channels // groups, 3, 2),
        samples.small_scales(rng, FILTERS),
        samples.integers(rng, np.int8, FILTERS),
    )


def integer(channels: int, groups: int = 1) -> Case:
    """`convolution_integer`."""

    def draw_integers(rng, rows):
        x, _, x_zero_point, w, _, w_zero_point = draw(rng, rows, channels, groups)
        return x, w, x_zero_point, w_zero_point

    options = {"groups": groups, **WINDOWS}
    return Case(
        functools.partial(jquant.convolution_integer, **options),
        functools.partial(reference.convolution_integer, **options),
        draw_integers,
        elementwise=False,
    )


def to_float(channels: int, groups: int = 1, dtype: Any = np.float32) -> Case:
    """`convolution_integer_to_float`, with scales, bias and result of one dtype."""

    def draw_floats(rng, rows):
        x, x_scale, x_zero_point, w, w_scale, w_zero_point = draw(rng, rows, channels, groups)
        bias = (rng.normal(size=FILTERS) * 100).astype(dtype)
        return x, x_scale.astype(dtype), x_zero_point, w, w_scale.astype(dtype), w_zero_point, bias

    options = {"groups": groups, **WINDOWS}
    return Case(
        functools.partial(jquant.convolution_integer_to_float, feature_level="EXTENDED", **options),
        functools.partial(reference.convolution_integer_to_float, dtype=dtype, **options),
        draw_floats,
        elementwise=False,
    )


def to_float_channels_last(channels: int, dtype: Any) -> Case:
    """`convolution_integer_to_float` with channels last, scales and bias in float32, and the result in `dtype`."""

    def draw_floats(rng, rows):
        x, *x_parameters, w, w_scale, w_zero_point = draw(rng, rows, channels, groups=1)
        bias = (rng.normal(size=FILTERS) * 100).astype(np.float32)
        return np.moveaxis(x, 1, -1), *x_parameters, w.transpose(2, 3, 1, 0), w_scale, w_zero_point, bias

    def function(*operands):
        options = {"dimension_numbers": CHANNELS_LAST, "output_dtype": dtype, "feature_level": "EXTENDED"}
        return jquant.convolution_integer_to_float(*operands, **WINDOWS, **options)

    def formula(x, x_scale, x_zero_point, w, *others):
        operands = np.moveaxis(x, -1, 1), x_scale, x_zero_point, w.transpose(3, 2, 0, 1), *others
        return np.moveaxis(reference.convolution_integer_to_float(*operands, dtype=dtype, **WINDOWS), 1, -1)

    return Case(function, formula, draw_floats, elementwise=False)


def quantized(dtype, channels: int, groups: int = 1) -> Case:
    """`quantized_linear_convolution`."""

    def draw_quantized(rng, rows):
        bias = rng.integers(-(10**5), 10**5, (1, FILTERS, 1, 1), np.int32)
        output = np.float32(rng.uniform(1, 9)), samples.integers(rng, dtype)
        return *draw(rng, rows, channels, groups), *output, bias

    options = {"groups": groups, **WINDOWS}
    return Case(
        functools.partial(jquant.quantized_linear_convolution, **options),
        functools.partial(reference.quantized_linear_convolution, dtype=dtype, **options),
        draw_quantized,
        divisor=lambda *operands: operands[6],
        elementwise=False,
    )


CASES: dict[str, Case] = {
    "convolution_integer": integer(channels=4),
    "convolution_integer_to_float": to_float(channels=4),
    "quantized_linear_convolution": quantized(np.int8, channels=4),
}

VARIANTS: dict[str, Case] = {
    "convolution_integer, groups": integer(channels=4, groups=2),
    "convolution_integer, depthwise": integer(channels=4, groups=4),
    "convolution_integer_to_float, float16, groups": to_float(channels=4, groups=2, dtype=np.float16),
    "convolution_integer_to_float, bfloat16, depthwise": to_float(channels=4, groups=4, dtype=jnp.bfloat16),
    "convolution_integer_to_float, channels last": to_float_channels_last(channels=20, dtype=np.float32),
    "convolution_integer_to_float, channels last, to bfloat16": to_float_channels_last(channels=20, dtype=jnp.bfloat16),
    "quantized_linear_convolution, uint8, one channel": quantized(np.uint8, channels=1),
    "quantized_linear_convolution, uint8, groups": quantized(np.uint8, channels=4, groups=2),
    "quantized_linear_convolution, uint8, depthwise": quantized(np.uint8, channels=4, groups=4),
}
