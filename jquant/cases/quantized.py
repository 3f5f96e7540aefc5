"""Cases of element-wise operators of DirectML and com.microsoft on quantized tensors, and their concatenation."""

import functools

import numpy as np

import jquant
from jquant.cases import samples
from jquant.cases.case import CHANNELS, Case
from jquant.reference import elementwise as reference


def tensor(rng, dtype, *sizes, scale=None):
    """Integers, their scale and their zero point."""
    scale = samples.small_scales(rng) if scale is None else scale
    return samples.integers(rng, dtype, *sizes), scale, samples.integers(rng, dtype)


def output(rng, dtype, step):
    """A scale of twice the step of the results, half of which are then ties, and an odd zero point, which shifts these."""
    return np.float32(2) * step, samples.integers(rng, dtype) | np.ones((), dtype)


def concat_of_two(concat):
    """A concatenation of two quantized tensors as a function of arrays."""

    def function(a, a_scale, a_zero_point, b, b_scale, b_zero_point, output_scale, output_zero_point):
        inputs = [(a, a_scale, a_zero_point), (b, b_scale, b_zero_point)]
        return concat(inputs, output_scale, output_zero_point)

    return function


def add(a_dtype, b_dtype) -> Case:
    """`quantized_linear_add` with equal scales, of which the sums are multiples."""

    def draw(rng, rows):
        scale = samples.small_scales(rng)
        a = tensor(rng, a_dtype, rows, CHANNELS, scale=scale)
        return *a, *tensor(rng, b_dtype, rows, CHANNELS, scale=scale), *output(rng, a_dtype, scale)

    return Case(
        jquant.quantized_linear_add,
        functools.partial(reference.quantized_linear_add, dtype=a_dtype),
        draw,
        rows=(0, 3),
        divisor=lambda *operands: operands[6],
    )


def add_without_zero_points(a_dtype, b_dtype) -> Case:
    """`quantized_linear_add` without any zero point."""

    def function(a, a_scale, b, b_scale, output_scale):
        return jquant.quantized_linear_add(a, a_scale, None, b, b_scale, None, output_scale)

    def formula(a, a_scale, b, b_scale, output_scale):
        return reference.quantized_linear_add(a, a_scale, 0, b, b_scale, 0, output_scale, 0, a_dtype)

    return Case(
        function,
        formula,
        lambda rng, rows: (
            *tensor(rng, a_dtype, rows, CHANNELS)[:2],
            *tensor(rng, b_dtype, rows, CHANNELS)[:2],
            samples.small_scales(rng),
        ),
        rows=(0, 2),
        divisor=lambda *operands: operands[4],
    )


def multiply(a_dtype, b_dtype, *, b_has_rows: bool) -> Case:
    """`quantized_linear_multiply`, with an output scale for which few results saturate, and some are ties."""

    def draw(rng, rows):
        a, a_scale, a_zero_point = tensor(rng, a_dtype, rows, CHANNELS)
        b, b_scale, b_zero_point = tensor(rng, b_dtype, rows if b_has_rows else 1, CHANNELS)
        step = np.float32(64) * a_scale * b_scale  # half of the output's scale
        return a, a_scale, a_zero_point, b, b_scale, b_zero_point, *output(rng, a_dtype, step)

    return Case(
        jquant.quantized_linear_multiply,
        functools.partial(reference.quantized_linear_multiply, dtype=a_dtype),
        draw,
        rows=(0, 3) if b_has_rows else (0,),
        divisor=lambda *operands: operands[6],
    )


def leaky_relu(dtype) -> Case:
    """`quantized_linear_leaky_relu`."""

    def draw(rng, rows):
        x, scale, zero_point = tensor(rng, dtype, rows, CHANNELS)
        return x, scale, zero_point, *output(rng, dtype, scale), np.float32(rng.uniform(0.01, 0.5))

    return Case(
        lambda *operands: jquant.quantized_linear_leaky_relu(*operands[:-1], alpha=operands[-1]),
        functools.partial(reference.quantized_linear_leaky_relu, dtype=dtype),
        draw,
        divisor=lambda *operands: operands[3],
    )


def concat(a_dtype, b_dtype, axis: int, channels: int) -> Case:
    """`quantized_linear_concat` of a tensor with this many channels and another, whose dtype is that of the output."""

    def draw(rng, rows):
        a, a_scale, a_zero_point = tensor(rng, a_dtype, rows, channels)
        return a, a_scale, a_zero_point, *tensor(rng, b_dtype, rows, CHANNELS), *output(rng, b_dtype, a_scale)

    return Case(
        concat_of_two(functools.partial(jquant.quantized_linear_concat, axis=axis)),
        concat_of_two(functools.partial(reference.quantized_linear_concat, axis=axis, dtype=b_dtype)),
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
    "quantized_linear_multiply": multiply(np.uint8, np.int8, b_has_rows=False),
    "quantized_linear_leaky_relu": leaky_relu(np.int8),
    "quantized_linear_concat": concat(np.uint8, np.int8, axis=1, channels=3),
}

VARIANTS: dict[str, Case] = {
    "quantized_linear_add, uint8": add(np.uint8, np.uint8),
    "quantized_linear_add, int8, no zero points": add_without_zero_points(np.int8, np.uint8),
    "quantized_linear_add, uint8, no zero points": add_without_zero_points(np.uint8, np.uint8),
    "quantized_linear_multiply, int8": multiply(np.int8, np.int8, b_has_rows=False),
    "quantized_linear_multiply, int8, uint8": multiply(np.int8, np.uint8, b_has_rows=True),
    "quantized_linear_multiply, uint8, uint8": multiply(np.uint8, np.uint8, b_has_rows=True),
    "quantized_linear_leaky_relu, uint8": leaky_relu(np.uint8),
    "quantized_linear_concat, uint8": concat(np.uint8, np.uint8, axis=1, channels=3),
    "quantized_linear_concat, int8, rows": concat(np.uint8, np.int8, axis=0, channels=CHANNELS),
    "quantized_linear_concat, uint8, rows": concat(np.uint8, np.uint8, axis=0, channels=CHANNELS),
}
