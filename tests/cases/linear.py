"""The element-wise operators of DirectML and ONNX."""

import functools

import jax.numpy as jnp
import numpy as np
import samples

import jquant
from cases.case import CHANNELS, ROWS, Case, floats, scales
from jquant import reference

BLOCKS = {"axis": 1, "block_size": 2}  # three of them, the last one partial


def dynamic_quantize_linear(x, where=True):
    return jquant.DynamicQuantizeOutput(*reference.dynamic_quantize_linear(x, where))


def finite_floats(rng):
    return (np.nan_to_num(floats(rng, 0.1), posinf=7, neginf=-5),)


def scale_and_zero_point(**options) -> Case:
    """Ranges with and without zero, of every magnitude, infinities and NaN."""

    def formula(low, high):
        return jquant.ScaleZeroPoint(*reference.scale_and_zero_point(low, high, np.int8, **options))

    def draw(rng):
        low, high = floats(rng, 0.1), floats(rng, 0.3)
        return np.minimum(low, high), np.maximum(low, high)

    def function(low, high):
        return jquant.scale_and_zero_point(low, high, "INT8", **options)

    return Case(function, formula, draw, rows=(0, 1))


def narrow(rng):
    """Arrays of integers that have a byte each: exported programs take and return no others."""
    return (samples.integers(rng, jnp.int4, ROWS, CHANNELS).astype(np.int8),)


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
    "dequantize_linear, blocks": Case(
        functools.partial(jquant.dequantize_linear, **BLOCKS),
        functools.partial(reference.dequantize_linear, **BLOCKS),
        lambda rng: (
            samples.integers(rng, np.int8, ROWS, CHANNELS),
            scales(rng, ROWS, 3),
            samples.integers(rng, np.int8, ROWS, 3),
        ),
        rows=(0, 1, 2),
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
    "quantize_linear, blocks": Case(
        functools.partial(jquant.quantize_linear, **BLOCKS),
        functools.partial(reference.quantize_linear, dtype=np.int8, **BLOCKS),
        lambda rng: (floats(rng, 0.0123), np.full((1, 3), 0.0123, np.float32), samples.integers(rng, np.int8, 1, 3)),
    ),
    "scale_and_zero_point": scale_and_zero_point(),
    "scale_and_zero_point, symmetric": scale_and_zero_point(symmetric=True, narrow_range=True),
    "dynamic_quantize_linear": Case(
        jquant.dynamic_quantize_linear, dynamic_quantize_linear, finite_floats, collectives=("all-reduce",)
    ),
    "dynamic_quantize_linear, where": Case(
        lambda x, where: jquant.dynamic_quantize_linear(x, where=where),
        dynamic_quantize_linear,
        lambda rng: (*finite_floats(rng), rng.random((ROWS, 1)) < 0.7),
        rows=(0, 1),
        collectives=("all-reduce",),
    ),
    "pack_integers": Case(
        lambda x: jquant.pack_integers(x.astype(jnp.int4)), lambda x: reference.pack_integers(x.astype(jnp.int4)), narrow
    ),
    "unpack_integers": Case(
        lambda x: jquant.unpack_integers(x, jnp.int2, size=19).astype(jnp.int8),
        lambda x: reference.unpack_integers(x, jnp.int2, 19).astype(np.int8),
        lambda rng: (samples.integers(rng, np.uint8, ROWS, CHANNELS),),
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
    "quantized_linear_add, ranks": Case(
        functools.partial(jquant.quantized_linear_add, feature_level="EXTENDED"),
        functools.partial(reference.quantized_linear_add, dtype=np.int8),
        lambda rng: (
            *(samples.integers(rng, np.uint8, ROWS, 2, CHANNELS), scales(rng), samples.integers(rng, np.uint8)),
            *(samples.integers(rng, np.int8, CHANNELS), scales(rng), samples.integers(rng, np.int8)),
            *(scales(rng), samples.integers(rng, np.int8)),
        ),
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
