"""The formats whose blocks share a scale of 8 bits."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import DTypeLike

import jquant
from jquant import reference
from jquant.cases import samples
from jquant.cases.case import Case

WIDTH = 40  # a block of 32 and a partial one; two of 16 and a partial one
ELEMENTS = "float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int8"


def in_bytes(x):
    """Codes of 4 bits, a byte each, for exported programs take and return no others."""
    x = lax.bitcast_convert_type(x, jnp.uint4) if isinstance(x, jax.Array) else x.view(np.uint8)
    return x.astype(np.uint8)


def from_bytes(code):
    if isinstance(code, np.ndarray):
        return code.view(jnp.float4_e2m1fn)
    return lax.bitcast_convert_type(code.astype(jnp.uint4), jnp.float4_e2m1fn)


def blocks(rng: np.random.Generator, rows: int, dtype: DTypeLike = np.float32) -> np.ndarray:
    """Rows of every magnitude, of ties, of zeros, with infinities and NaN at the end."""
    scales = samples.scales(rng, rows)[:, None]
    with np.errstate(over="ignore"):
        x = (samples.floats(rng, (rows, WIDTH), 0.25) * scales).astype(np.float32)
        x[::5] = 0
        return samples.without_subnormals(x).astype(dtype)


def mx_quantize(element: str, dtype: DTypeLike = np.float32) -> Case:
    def of(module):
        def quantized(x):
            values, scale = module.mx_quantize(x, element)
            return jquant.MxQuantizeOutput(in_bytes(values) if element == "float4_e2m1fn" else values, scale)

        return quantized

    return Case(of(jquant), of(reference), lambda rng, rows: (blocks(rng, rows, dtype),))


def mx_dequantize(element: str, dtype: DTypeLike = np.float32) -> Case:
    def draw(rng, rows):
        bits = 8 if element == "int8" else int(element[5])
        values = rng.integers(0, 2**bits, (rows, WIDTH), np.uint8)
        if bits == 8:
            values = values.view(element)
        scale = rng.integers(100, 140, (rows, 2), np.uint8)
        scale[::5] = 255
        return values, scale.view(jnp.float8_e8m0fnu)

    def numbers(values):
        return from_bytes(values) if element == "float4_e2m1fn" else values

    return Case(
        lambda values, scale: jquant.mx_dequantize(numbers(values), scale, element_type=element, output_dtype=dtype),
        lambda values, scale: reference.mx_dequantize(numbers(values), scale, element, dtype=dtype),
        draw,
        rows=(0, 1),
    )


def nvfp4_quantize(*, tensor_scale: bool) -> Case:
    def of(module):
        def quantized(*arguments):
            values, *scales = module.nvfp4_quantize(*arguments)
            return jquant.Nvfp4QuantizeOutput(in_bytes(values), *scales)

        return quantized

    def draw(rng, rows):
        x = blocks(rng, rows)
        return (x, np.float32(0.01)) if tensor_scale else (np.nan_to_num(x, posinf=1, neginf=-1).clip(-1e6, 1e6),)

    collectives = () if tensor_scale else ("all-reduce",)
    return Case(of(jquant), of(reference), draw, collectives=collectives)


def nvfp4_dequantize(dtype: DTypeLike = np.float32) -> Case:
    def draw(rng, rows):
        values = rng.integers(0, 16, (rows, WIDTH), np.uint8)
        return values, samples.narrow_floats(rng, jnp.float8_e4m3fn, rows, 3), np.float32(0.0123)

    return Case(
        lambda values, *scales: jquant.nvfp4_dequantize(from_bytes(values), *scales, output_dtype=dtype),
        lambda values, *scales: reference.nvfp4_dequantize(from_bytes(values), *scales, dtype=dtype),
        draw,
        rows=(0, 1),
    )


CASES: dict[str, Case] = {
    "mx_quantize": mx_quantize("float8_e4m3fn"),
    "mx_dequantize": mx_dequantize("float8_e4m3fn"),
    "nvfp4_quantize": nvfp4_quantize(tensor_scale=False),
    "nvfp4_quantize, tensor_scale": nvfp4_quantize(tensor_scale=True),
    "nvfp4_dequantize": nvfp4_dequantize(),
}

VARIANTS: dict[str, Case] = {
    **{f"mx_quantize, {element}": mx_quantize(element) for element in ELEMENTS[1:]},
    **{f"mx_dequantize, {element}": mx_dequantize(element) for element in ELEMENTS[1:]},
    "mx_quantize, float16": mx_quantize("float8_e4m3fn", np.float16),
    "mx_dequantize, bfloat16": mx_dequantize("int8", jnp.bfloat16),
    "nvfp4_dequantize, bfloat16": nvfp4_dequantize(jnp.bfloat16),
}
