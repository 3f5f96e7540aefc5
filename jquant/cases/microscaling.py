"""Cases of the formats whose blocks share an 8-bit scale."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jquant
from jquant.cases import samples
from jquant.cases.case import Case
from jquant.lowering.bitcast import bitcast_unguarded
from jquant.reference import microscaling as reference
from jquant.reference import narrow_floats

WIDTH = 40  # one block of 32, or two of 16, and a partial one
ELEMENTS = "float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int8"


def in_bytes(x):
    """4-bit codes, one byte each, because exported programs take and return no narrower arrays."""
    x = bitcast_unguarded(x, jnp.uint4) if isinstance(x, jax.Array) else x.view(np.uint8)
    return x.astype(np.uint8)


def from_bytes(code, dtype: str):
    """8- or 4-bit floats from codes, one byte each. Arguments are codes because a caller's program computes with floats."""
    if isinstance(code, np.ndarray):
        return code.view(dtype)
    unsigned = code.astype(jnp.uint4) if dtype == "float4_e2m1fn" else code
    return bitcast_unguarded(unsigned, jnp.dtype(dtype))


def codes(rng: np.random.Generator, element: str, *shape: int) -> np.ndarray:
    """Codes of finite numbers."""
    drawn = rng.integers(0, 2 ** (8 if element == "int8" else int(element[5])), shape, np.uint8)
    if element == "int8":
        return drawn
    return np.where(np.isfinite(narrow_floats.decode(drawn, element)), drawn, np.uint8(0))


def blocks(rng: np.random.Generator, rows: int, dtype: Any = np.float32) -> np.ndarray:
    """Rows of every magnitude, with ties and zeros, and infinities and NaN at the end."""
    scales = samples.scales(rng, rows)[:, None]
    with np.errstate(over="ignore"):
        x = (samples.floats(rng, (rows, WIDTH), 0.25) * scales).astype(np.float32)
        x[::5] = 0
        return samples.without_subnormals(x).astype(dtype)


def mx_quantize(element: str, dtype: Any = np.float32) -> Case:
    def with_codes(module):
        def function(x):
            values, scale = module.mx_quantize(x, element)
            return jquant.MxQuantizeOutput(in_bytes(values) if element == "float4_e2m1fn" else values, scale)

        return function

    # A scale is stored for each block, and the blocks are small.
    return Case(with_codes(jquant), with_codes(reference), lambda rng, rows: (blocks(rng, rows, dtype),), elementwise=False)


def mx_dequantize(element: str, dtype: Any = np.float32) -> Case:
    def draw(rng, rows):
        return codes(rng, element, rows, WIDTH), rng.integers(100, 140, (rows, 2), np.uint8)

    def with_codes(dequantize):
        def function(values, scale):
            values = values if element.startswith("float6") else from_bytes(values, element)
            return dequantize(values, from_bytes(scale, "float8_e8m0fnu"))

        return function

    return Case(
        with_codes(functools.partial(jquant.mx_dequantize, element_type=element, output_dtype=dtype)),
        with_codes(functools.partial(reference.mx_dequantize, element=element, dtype=dtype)),
        draw,
        rows=(0, 1),
        elementwise=False,  # the narrow floats are computed, and stored
    )


def nvfp4_quantize(*, tensor_scale: bool) -> Case:
    def with_codes(module):
        def function(*arguments):
            values, scale, tensor_scale = module.nvfp4_quantize(*arguments)
            return jquant.Nvfp4QuantizeOutput(in_bytes(values), scale, tensor_scale)

        return function

    def draw(rng, rows):
        x = blocks(rng, rows)
        return (x, np.float32(0.01)) if tensor_scale else (np.nan_to_num(x, posinf=1, neginf=-1).clip(-1e6, 1e6),)

    collectives = () if tensor_scale else ("all-reduce",)
    return Case(with_codes(jquant), with_codes(reference), draw, collectives=collectives, elementwise=False)


def nvfp4_dequantize(dtype: Any = np.float32) -> Case:
    def draw(rng, rows):
        values, scale = codes(rng, "float4_e2m1fn", rows, WIDTH), codes(rng, "float8_e4m3fn", rows, 3)
        return values, scale, np.float32(0.0123)

    def with_codes(dequantize):
        def function(values, scale, tensor_scale):
            return dequantize(from_bytes(values, "float4_e2m1fn"), from_bytes(scale, "float8_e4m3fn"), tensor_scale)

        return function

    return Case(
        with_codes(functools.partial(jquant.nvfp4_dequantize, output_dtype=dtype)),
        with_codes(functools.partial(reference.nvfp4_dequantize, dtype=dtype)),
        draw,
        rows=(0, 1),
        elementwise=False,  # the narrow floats are computed, and stored
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
