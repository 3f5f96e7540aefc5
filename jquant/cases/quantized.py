"""The operators of DirectML and com.microsoft that compute element-wise with quantized tensors."""

import functools

import numpy as np

import jquant
from jquant import reference
from jquant.cases import samples
from jquant.cases.case import CHANNELS, Case


def tensor(rng, dtype, *sizes, scale=None):
    """Integers, their scale and their zero point."""
    scale = samples.small_scales(rng) if scale is None else scale
    return samples.integers(rng, dtype, *sizes), scale, samples.integers(rng, dtype)


def output(rng, dtype, step):
    """Twice the step of the results, half of which are then ties; and an odd zero point, which moves them."""
    return np.float32(2) * step, samples.integers(rng, dtype) | np.ones((), dtype)


def of_triples(concat):
    """The concatenation of two tensors, as a function of arrays."""
    return lambda a, a_scale, a_zero, b, b_scale, b_zero, *output: concat(
        [(a, a_scale, a_zero), (b, b_scale, b_zero)], *output
    )


def add(dtype, other) -> Case:
    """Equal scales, of which the sums are multiples."""

    def draw(rng, rows):
        scale = samples.small_scales(rng)
        one = tensor(rng, dtype, rows, CHANNELS, scale=scale)
        return *one, *tensor(rng, other, rows, CHANNELS, scale=scale), *output(rng, dtype, scale)

    return Case(
        jquant.quantized_linear_add,
        functools.partial(reference.quantized_linear_add, dtype=dtype),
        draw,
        rows=(0, 3),
        divisor=lambda *operands: operands[6],
    )


def add_without_zero_points(dtype, other) -> Case:
    def function(a, a_scale, b, b_scale, output_scale):
        return jquant.quantized_linear_add(a, a_scale, None, b, b_scale, None, output_scale)

    def formula(a, a_scale, b, b_scale, output_scale):
        return reference.quantized_linear_add(a, a_scale, 0, b, b_scale, 0, output_scale, 0, dtype)

    return Case(
        function,
        formula,
        lambda rng, rows: (
            *tensor(rng, dtype, rows, CHANNELS)[:2],
            *tensor(rng, other, rows, CHANNELS)[:2],
            samples.small_scales(rng),
        ),
        rows=(0, 2),
        divisor=lambda *operands: operands[4],
    )


def multiply(dtype, other, *, other_has_rows: bool) -> Case:
    """128 times the product of the scales, so that few results saturate, and some are ties."""

    def draw(rng, rows):
        one = tensor(rng, dtype, rows, CHANNELS)
        factor = tensor(rng, other, rows if other_has_rows else 1, CHANNELS)
        return *one, *factor, *output(rng, dtype, np.float32(64) * one[1] * factor[1])

    return Case(
        jquant.quantized_linear_multiply,
        functools.partial(reference.quantized_linear_multiply, dtype=dtype),
        draw,
        rows=(0, 3) if other_has_rows else (0,),
        divisor=lambda *operands: operands[6],
    )


def leaky_relu(dtype) -> Case:
    def draw(rng, rows):
        x = tensor(rng, dtype, rows, CHANNELS)
        return *x, *output(rng, dtype, x[1]), np.float32(rng.uniform(0.01, 0.5))

    return Case(
        lambda *operands: jquant.quantized_linear_leaky_relu(*operands[:-1], alpha=operands[-1]),
        functools.partial(reference.quantized_linear_leaky_relu, dtype=dtype),
        draw,
        divisor=lambda *operands: operands[3],
    )


def concat(dtype, other, axis: int, channels: int) -> Case:
    def draw(rng, rows):
        one = tensor(rng, other, rows, channels)
        return *one, *tensor(rng, dtype, rows, CHANNELS), *output(rng, dtype, one[1])

    return Case(
        of_triples(functools.partial(jquant.quantized_linear_concat, axis=axis)),
        of_triples(functools.partial(reference.quantized_linear_concat, axis=axis, dtype=dtype)),
        draw,
        rows=(0, 3),
        divisor=lambda *operands: operands[6],
    )


CASES: dict[str, Case] = {
    "quantized_linear_add": add(np.int8, np.uint8),
    "quantized_linear_add, ranks": Case(
        functools.partial(jquant.quantized_linear_add, feature_level="EXTENDED"),
        functools.partial(reference.quantized_linear_add, dtype=np.int8),
        lambda rng, rows: (
            *tensor(rng, np.uint8, rows, 2, CHANNELS),
            *tensor(rng, np.int8, CHANNELS),
            *output(rng, np.int8, samples.small_scales(rng)),
        ),
        divisor=lambda *operands: operands[6],
    ),
    "quantized_linear_multiply": multiply(np.uint8, np.int8, other_has_rows=False),
    "quantized_linear_leaky_relu": leaky_relu(np.int8),
    "quantized_linear_concat": concat(np.int8, np.uint8, axis=1, channels=3),
}

VARIANTS: dict[str, Case] = {
    "quantized_linear_add, uint8": add(np.uint8, np.uint8),
    "quantized_linear_add, int8, no zero points": add_without_zero_points(np.int8, np.uint8),
    "quantized_linear_add, uint8, no zero points": add_without_zero_points(np.uint8, np.uint8),
    "quantized_linear_multiply, int8": multiply(np.int8, np.int8, other_has_rows=False),
    "quantized_linear_multiply, int8, uint8": multiply(np.int8, np.uint8, other_has_rows=True),
    "quantized_linear_multiply, uint8, uint8": multiply(np.uint8, np.uint8, other_has_rows=True),
    "quantized_linear_leaky_relu, uint8": leaky_relu(np.uint8),
    "quantized_linear_concat, uint8": concat(np.uint8, np.uint8, axis=1, channels=3),
    "quantized_linear_concat, int8, rows": concat(np.int8, np.uint8, axis=0, channels=CHANNELS),
    "quantized_linear_concat, uint8, rows": concat(np.uint8, np.uint8, axis=0, channels=CHANNELS),
}
