"""The element-wise operators of DirectML and ONNX."""

import functools

import numpy as np
import samples

import jquant
from cases.case import CHANNELS, ROWS, Case, floats, scales
from jquant import reference


def of_triples(concat):
    """The concatenation of two tensors, as a function of arrays."""
    return lambda a, a_scale, a_zero, b, b_scale, b_zero, *output: concat(
        [(a, a_scale, a_zero), (b, b_scale, b_zero)], *output
    )


CASES: dict[str, Case] = {
    "dequantize_linear": Case(
        jquant.dequantize_linear,
        reference.dequantize_linear,
        lambda rng: (
            samples.integers(rng, np.uint8, ROWS, CHANNELS),
            scales(rng, 1, CHANNELS),
            samples.integers(rng, np.uint8, 1, 1),
        ),
    ),
    "quantize_linear": Case(
        jquant.quantize_linear,
        functools.partial(reference.quantize_linear, dtype=np.int8),
        lambda rng: (
            floats(rng, 0.0123),
            np.full((1, CHANNELS), 0.0123, np.float32),
            samples.integers(rng, np.int8, 1, CHANNELS),
        ),
    ),
    "quantized_linear_add": Case(
        jquant.quantized_linear_add,
        functools.partial(reference.quantized_linear_add, dtype=np.int8),
        lambda rng: (
            *(samples.integers(rng, np.uint8, ROWS, CHANNELS), scales(rng), samples.integers(rng, np.uint8)),
            *(samples.integers(rng, np.int8, ROWS, CHANNELS), scales(rng), samples.integers(rng, np.int8)),
            *(scales(rng), samples.integers(rng, np.int8)),
        ),
        rows=(0, 3),
    ),
    "quantized_linear_multiply": Case(
        jquant.quantized_linear_multiply,
        functools.partial(reference.quantized_linear_multiply, dtype=np.uint8),
        lambda rng: (
            *(samples.integers(rng, np.uint8, ROWS, CHANNELS), scales(rng), samples.integers(rng, np.uint8)),
            *(samples.integers(rng, np.int8, 1, CHANNELS), scales(rng), samples.integers(rng, np.int8)),
            *(scales(rng), samples.integers(rng, np.uint8)),
        ),
    ),
    "quantized_linear_leaky_relu": Case(
        lambda *operands: jquant.quantized_linear_leaky_relu(*operands[:-1], alpha=operands[-1]),
        functools.partial(reference.quantized_linear_leaky_relu, dtype=np.int8),
        lambda rng: (
            *(samples.integers(rng, np.int8, ROWS, CHANNELS), scales(rng), samples.integers(rng, np.int8)),
            *(scales(rng), samples.integers(rng, np.int8), np.float32(rng.uniform(0.01, 0.5))),
        ),
    ),
    "quantized_linear_concat": Case(
        of_triples(functools.partial(jquant.quantized_linear_concat, axis=1)),
        of_triples(functools.partial(reference.quantized_linear_concat, axis=1, dtype=np.int8)),
        lambda rng: (
            *(samples.integers(rng, np.uint8, ROWS, 3), scales(rng), samples.integers(rng, np.uint8)),
            *(samples.integers(rng, np.int8, ROWS, CHANNELS), scales(rng), samples.integers(rng, np.int8)),
            *(scales(rng), samples.integers(rng, np.int8)),
        ),
        rows=(0, 3),
    ),
    "clip": Case(
        jquant.clip,
        reference.clip,
        lambda rng: (floats(rng, 0.1), np.float32(rng.uniform(-2, 0)), np.float32(rng.uniform(3, 6))),
    ),
    "clip, scale_bias": Case(
        lambda x, low, high, scale_bias: jquant.clip(x, low, high, scale_bias=scale_bias),
        reference.clip,
        lambda rng: (floats(rng, 0.1), np.float32(-2), np.float32(5), jquant.ScaleBias(scales(rng), scales(rng))),
    ),
    "clip1": Case(
        lambda x, low, high, scale_bias: jquant.clip1(x, low, high, scale_bias=scale_bias),
        reference.clip1,
        lambda rng: (floats(rng, 0.1), np.float32(-2), np.float32(5), jquant.ScaleBias(scales(rng), scales(rng))),
    ),
    **{
        name: Case(
            getattr(jquant, name),
            getattr(reference, name),
            lambda rng: (floats(rng, 0.1), floats(rng, 1), np.float32(rng.uniform(-2, 0)), np.float32(rng.uniform(3, 6))),
            rows=(0, 1),
        )
        for name in ("clip_gradient", "clip_gradient1")
    },
}
