"""Cases of quantization, dequantization and packing of DirectML and ONNX."""

import functools
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np

import jquant
from jquant.cases import samples
from jquant.cases.case import CHANNELS, FLOATS, Case
from jquant.reference import linear as reference
from jquant.reference import packing

INTEGERS = tuple(map(np.dtype, (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)))
BYTES = INTEGERS[:2]
GRANULARITIES = "tensor", "axis", "tensor, no zero point"


def parameters(rng: np.random.Generator, granularity: str, scale_dtype, zero_point_dtype) -> tuple[np.ndarray, ...]:
    """A scale and, unless the granularity says no, a zero point."""
    sizes = (1, CHANNELS) if granularity == "axis" else ()
    scale = samples.small_scales(rng, *sizes, dtype=scale_dtype)
    return (scale,) if "no" in granularity else (scale, samples.integers(rng, zero_point_dtype, *sizes))


def dequantize_narrow_floats(dtype, scale_dtype) -> Case:
    """`dequantize_linear` of 8- or 4-bit floats."""

    def draw(rng, rows):
        return samples.narrow_floats(rng, dtype, rows, CHANNELS), samples.small_scales(rng, 1, CHANNELS, dtype=scale_dtype)

    function = functools.partial(jquant.dequantize_linear, feature_level="EXTENDED")
    return Case(function, reference.dequantize_linear, draw)


def quantize_to_narrow_floats(input_dtype, dtype, **options) -> Case:
    """`quantize_linear` to 8- or 4-bit floats: of halves of odd integers, some of which are ties, and of any floats."""

    def draw(rng, rows):
        scale = samples.small_scales(rng, 1, CHANNELS, dtype=input_dtype)
        step = scale.astype(np.float32)
        zero_point = rng.integers(-2, 3, (1, CHANNELS)).astype(np.float32).astype(dtype)
        return samples.floats(rng, (rows, CHANNELS), step, dtype=input_dtype), scale, zero_point

    def formula(x, scale, zero_point):
        return reference.quantize_linear(x, scale, zero_point, dtype, **options)

    function = functools.partial(jquant.quantize_linear, feature_level="EXTENDED", **options)
    return Case(function, formula, draw, divisor=lambda x, scale, zero_point: scale)


def dequantize_linear(dtype, scale_dtype, granularity: str) -> Case:
    """`dequantize_linear` of integers."""

    def draw(rng, rows):
        return samples.integers(rng, dtype, rows, CHANNELS), *parameters(rng, granularity, scale_dtype, dtype)

    function = functools.partial(jquant.dequantize_linear, feature_level="EXTENDED")
    return Case(function, reference.dequantize_linear, draw)


def quantize_linear(input_dtype, dtype, granularity: str) -> Case:
    """`quantize_linear` of floats or int32."""
    scale_dtype = input_dtype if jnp.issubdtype(input_dtype, jnp.floating) else np.float32

    def draw(rng, rows):
        scale, *zero_point = parameters(rng, granularity, scale_dtype, dtype)
        if scale_dtype == input_dtype:
            x = samples.floats(rng, (rows, CHANNELS), scale.astype(np.float32), dtype=input_dtype)
        else:
            x = samples.integers(rng, input_dtype, rows, CHANNELS)
        return x, scale, *zero_point

    def formula(x, scale, zero_point=0):
        return reference.quantize_linear(x, scale, zero_point, dtype)

    function = functools.partial(jquant.quantize_linear, output_dtype=dtype, feature_level="EXTENDED")
    return Case(function, formula, draw, divisor=lambda x, scale, *_: scale)


ROW_BLOCKS = {"axis": 1, "block_size": 2}  # three blocks, the last one partial
MIDDLE_BLOCKS = {"axis": 1, "block_size": 3}  # in a dimension of size 7


def dequantize_linear_in_blocks(dtype) -> Case:
    """`dequantize_linear` with a scale and a zero point for each block of each row."""

    def draw(rng, rows):
        x, zero_point = samples.integers(rng, dtype, rows, CHANNELS), samples.integers(rng, dtype, rows, 3)
        return x, samples.small_scales(rng, rows, 3), zero_point

    function, formula = (functools.partial(module.dequantize_linear, **ROW_BLOCKS) for module in (jquant, reference))
    return Case(function, formula, draw, rows=(0, 1, 2))


def dynamic_quantize_linear(x, where=True, dtype: Any = np.uint8, **options):
    """The reference, with the operator's result type."""
    return jquant.DynamicQuantizeOutput._make(reference.dynamic_quantize_linear(x, where, dtype, **options))


def dynamic_quantize_rows(input_dtype, dtype, *, symmetric: bool) -> Case:
    """`dynamic_quantize_linear` with a range for each row."""

    def draw(rng, rows):
        scales = samples.scales(rng, rows).clip(1e-3, 10)[:, None]  # so that some rows are in the range of float16
        with np.errstate(over="ignore"):
            return ((samples.floats(rng, (rows, CHANNELS), 1) * scales).astype(input_dtype),)

    options = {"axis": -1, "symmetric": symmetric}
    return Case(
        functools.partial(jquant.dynamic_quantize_linear, output_dtype=dtype, feature_level="EXTENDED", **options),
        functools.partial(dynamic_quantize_linear, dtype=dtype, **options),
        draw,
        elementwise=False,  # the ranges of short rows are as large as the tensor
    )


def finite_floats(rng, rows):
    """Finite floats with a range whose scale is about 1."""
    return (np.nan_to_num(samples.floats(rng, (rows, CHANNELS), 1)).clip(-135, 120),)


def scale_and_zero_point(dtype, **options) -> Case:
    """`scale_and_zero_point` of ranges of every magnitude, with 0 inside or outside, infinities and NaN."""

    def formula(low, high):
        return jquant.ScaleZeroPoint._make(reference.scale_and_zero_point(low, high, dtype, **options))

    def draw(rng, rows):
        low, high = (samples.floats(rng, (rows, CHANNELS), step) for step in (0.1, 0.3))
        return np.minimum(low, high), np.maximum(low, high)

    def function(low, high):
        return jquant.scale_and_zero_point(low, high, dtype, **options)

    return Case(function, formula, draw, rows=(0, 1), elementwise=False)


SYMMETRIC = {"symmetric": True, "narrow_range": True}

CASES: dict[str, Case] = {
    "dequantize_linear": Case(
        jquant.dequantize_linear,
        reference.dequantize_linear,
        lambda rng, rows: (
            samples.integers(rng, np.uint8, rows, CHANNELS),
            samples.small_scales(rng, 1, CHANNELS),
            samples.integers(rng, np.uint8, 1, 1),
        ),
    ),
    "dequantize_linear, blocks": dequantize_linear_in_blocks(np.int8),
    "quantize_linear": Case(
        jquant.quantize_linear,
        functools.partial(reference.quantize_linear, dtype=np.int8),
        lambda rng, rows: (
            samples.floats(rng, (rows, CHANNELS), 0.0123),
            np.full((1, CHANNELS), 0.0123, np.float32),
            samples.integers(rng, np.int8, 1, CHANNELS),
        ),
        divisor=lambda x, scale, zero_point: scale,
    ),
    "quantize_linear, blocks": Case(
        functools.partial(jquant.quantize_linear, **ROW_BLOCKS),
        functools.partial(reference.quantize_linear, dtype=np.int8, **ROW_BLOCKS),
        lambda rng, rows: (
            samples.floats(rng, (rows, CHANNELS), 0.0123),
            np.full((1, 3), 0.0123, np.float32),
            samples.integers(rng, np.int8, 1, 3),
        ),
        divisor=lambda x, scale, zero_point: scale,
    ),
    "scale_and_zero_point": scale_and_zero_point(np.int8),
    "scale_and_zero_point, symmetric": scale_and_zero_point(np.int8, **SYMMETRIC),
    "dynamic_quantize_linear": Case(
        jquant.dynamic_quantize_linear, dynamic_quantize_linear, finite_floats, collectives=("all-reduce",)
    ),
    "dynamic_quantize_linear, where": Case(
        lambda x, where: jquant.dynamic_quantize_linear(x, where=where),
        dynamic_quantize_linear,
        lambda rng, rows: (*finite_floats(rng, rows), rng.random((rows, 1)) < 0.7),
        rows=(0, 1),
        collectives=("all-reduce",),
    ),
    "dynamic_quantize_linear, rows": dynamic_quantize_rows(np.float32, np.int8, symmetric=True),
    # The integers are one byte each, because exported programs take and return no narrower ones.
    "pack_integers": Case(
        lambda x: jquant.pack_integers(x.astype(jnp.int4)),
        lambda x: packing.pack_integers(x.astype(jnp.int4)),
        lambda rng, rows: (samples.integers(rng, jnp.int4, rows, CHANNELS).astype(np.int8),),
    ),
    "unpack_integers": Case(
        lambda x: jquant.unpack_integers(x, jnp.int2, size=19).astype(jnp.int8),
        lambda x: packing.unpack_integers(x, jnp.int2, 19).astype(np.int8),
        lambda rng, rows: (samples.integers(rng, np.uint8, rows, CHANNELS),),
    ),
}

VARIANTS: dict[str, Case] = {
    **{
        f"dequantize_linear, {dtype}, {scale_dtype}, {granularity}": dequantize_linear(dtype, scale_dtype, granularity)
        for dtype, scale_dtype, granularity in itertools.product(INTEGERS, FLOATS, GRANULARITIES)
    },
    **{
        f"quantize_linear, {input_dtype}, {dtype}, {granularity}": quantize_linear(input_dtype, dtype, granularity)
        for input_dtype, dtype, granularity in itertools.product((*FLOATS, np.dtype(np.int32)), BYTES, GRANULARITIES)
    },
    "dequantize_linear, float8_e5m2": dequantize_narrow_floats(jnp.float8_e5m2, np.float16),
    "dequantize_linear, float4_e2m1fn": dequantize_narrow_floats(jnp.float4_e2m1fn, np.float32),
    "quantize_linear, float8_e4m3fn": quantize_to_narrow_floats(np.float32, jnp.float8_e4m3fn, saturate=False),
    "quantize_linear, float4_e2m1fn": quantize_to_narrow_floats(np.float16, jnp.float4_e2m1fn),
    "dequantize_linear, int4, blocks": dequantize_linear_in_blocks(jnp.int4),
    "dequantize_linear, int4, blocks of rows": Case(
        functools.partial(jquant.dequantize_linear, **MIDDLE_BLOCKS),
        functools.partial(reference.dequantize_linear, **MIDDLE_BLOCKS),
        lambda rng, rows: (
            samples.integers(rng, jnp.int4, rows, 7, CHANNELS),
            samples.small_scales(rng, 1, 3, CHANNELS),
            samples.integers(rng, jnp.int4, 1, 3, CHANNELS),
        ),
    ),
    "quantize_linear, uint4, blocks": Case(
        functools.partial(jquant.quantize_linear, **ROW_BLOCKS),
        functools.partial(reference.quantize_linear, dtype=jnp.uint4, **ROW_BLOCKS),
        lambda rng, rows: (
            samples.floats(rng, (rows, CHANNELS), 0.25),
            samples.scales(rng, rows * 3).reshape(rows, 3),
            samples.integers(rng, jnp.uint4, rows, 3),
        ),
        rows=(0, 1, 2),
    ),
    "quantize_linear, uint4, blocks of rows": Case(
        functools.partial(jquant.quantize_linear, **MIDDLE_BLOCKS),
        functools.partial(reference.quantize_linear, dtype=jnp.uint4, **MIDDLE_BLOCKS),
        lambda rng, rows: (
            samples.floats(rng, (rows, 7, CHANNELS), 0.25),
            samples.scales(rng, 3 * CHANNELS).reshape(1, 3, CHANNELS),
            samples.integers(rng, jnp.uint4, 1, 3, CHANNELS),
        ),
        divisor=lambda x, scale, zero_point: scale,
    ),
    "scale_and_zero_point, uint8": scale_and_zero_point(np.uint8),
    "scale_and_zero_point, uint8, symmetric": scale_and_zero_point(np.uint8, **SYMMETRIC),
    "dynamic_quantize_linear, int8": Case(
        functools.partial(jquant.dynamic_quantize_linear, output_dtype=np.int8),
        functools.partial(dynamic_quantize_linear, dtype=np.int8),
        finite_floats,
    ),
    **{
        f"dynamic_quantize_linear, rows, {input_dtype}, {dtype}{', symmetric' * symmetric}": dynamic_quantize_rows(
            input_dtype, dtype, symmetric=symmetric
        )
        for input_dtype, dtype, symmetric in itertools.product(FLOATS, BYTES, (False, True))
    },
}
