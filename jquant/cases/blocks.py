"""Cases of products with block scales, and the packing of their matrices."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

import jquant
from jquant.cases import samples
from jquant.cases.case import CHANNELS, FLOATS, Case
from jquant.packed.block_matrix import Layout, PackedBlockMatrix
from jquant.reference import blocks as reference

BLOCK = 32


def packed(b, zero_point: Any, scale, block_size: int = BLOCK, minimum: Any = None):
    """The documented result of `pack_matrix` for 4- or 8-bit integers with block scales, in NumPy."""
    *batch, k, n = b.shape
    *_, blocks, _ = scale.shape
    dtype, padding = b.dtype, blocks * block_size - k
    row_padding = *((0, 0),) * len(batch), (0, padding), (0, 0)
    signed = jnp.iinfo(dtype).min < 0
    if zero_point is not None:
        zero_point = np.broadcast_to(np.asarray(zero_point).astype(np.int8 if signed else np.uint8), scale.shape)
    bits = jnp.iinfo(dtype).bits
    if bits == 8 or block_size % 4:
        data: Any = np.pad((b.astype(np.int16) - (0 if signed or bits == 4 else 128)).astype(np.int8), row_padding)
        return PackedBlockMatrix(
            data=data,
            scale=scale,
            zero_point=zero_point,
            minimum=minimum,
            dtype=np.dtype(dtype),
            block_size=block_size,
            padding=padding,
            layout=Layout.BYTES,
        )
    nibbles = np.pad((b.astype(np.int8) + (8 if signed else 0)).astype(np.uint16), row_padding)
    nibbles = nibbles.reshape(*batch, (k + padding) // 4, 4, n)
    words: Any = sum(nibbles[..., place, :] << np.uint16(4 * place) for place in range(4))
    return PackedBlockMatrix(
        data=words,
        scale=scale,
        zero_point=zero_point,
        minimum=minimum,
        dtype=jnp.dtype(dtype),
        block_size=block_size,
        padding=padding,
        layout=Layout.WORDS,
    )


def unpacked(matrix: PackedBlockMatrix):
    """The inverse of `packed`: the integers and their zero points, in NumPy dtypes."""
    data = np.asarray(matrix.data)
    signed = jnp.iinfo(matrix.dtype).min < 0
    if matrix.layout == Layout.BYTES:
        b = data.astype(np.int16) + (0 if signed else 128)
    else:
        *batch, words, n = data.shape
        nibbles = np.stack([data >> np.uint16(4 * place) & np.uint16(15) for place in range(4)], axis=-2)
        b = nibbles.reshape(*batch, 4 * words, n).astype(np.int16) - (8 if signed else 0)
    return b[..., : b.shape[-2] - matrix.padding, :], matrix.zero_point


def case(
    a_dtype: Any,
    b_dtype: Any,
    k: int,
    *,
    as_packed: bool,
    floats: Any = np.float32,
    has_zero_points=True,
    has_minimum=False,
    **options: Any,
) -> Case:
    """`block_scaled_matmul` with a scale and a zero point per row of A and per block and column of B, and a bias.

    Packed weights may have a minimum instead of a zero point.
    """
    blocks = -(-k // BLOCK)

    def draw(rng, rows):
        a = samples.integers(rng, a_dtype, rows, k)
        a_scale, a_zero_point = samples.small_scales(rng, rows, 1, dtype=floats), None
        b = samples.integers(rng, b_dtype, k, CHANNELS)
        b_scale = samples.small_scales(rng, blocks, CHANNELS, dtype=floats)
        b_zero_point = None
        if has_zero_points:
            a_zero_point = samples.integers(rng, a_dtype, rows, 1)
            b_zero_point = None if has_minimum else samples.integers(rng, b_dtype, *b_scale.shape)
        minimum = rng.normal(size=b_scale.shape).astype(floats) if has_minimum else None
        bias = (rng.normal(size=CHANNELS) * 100).astype(np.float32)
        if as_packed:
            return a, a_scale, a_zero_point, packed(b, b_zero_point, b_scale, minimum=minimum), None, None, bias
        return a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias

    def formula(a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias):
        minimum = None
        if as_packed:
            b_scale, minimum = np.asarray(b.scale), None if b.minimum is None else np.asarray(b.minimum)
            b, b_zero_point = unpacked(b)
        operands = a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias
        return reference.block_scaled_matmul(*operands, minimum=minimum, block_size=BLOCK, **options)

    block_size = {} if as_packed else {"block_size": BLOCK}
    return Case(
        functools.partial(jquant.block_scaled_matmul, **block_size, **options),
        formula,
        draw,
        rows=(0, 1, 2),
        elementwise=False,
    )


def packing(dtype: Any) -> Case:
    """`pack_matrix` with block scales, for one matrix per row."""

    def draw(rng, rows):
        b, zero_point = samples.integers(rng, dtype, rows, 90, CHANNELS), samples.integers(rng, dtype, rows, 3, CHANNELS)
        return b, zero_point, samples.small_scales(rng, rows, 3, CHANNELS)

    def function(b, zero_point, scale):
        return jquant.pack_matrix(b, zero_point, scale=scale, block_size=BLOCK)

    return Case(function, packed, draw, rows=(0, 1, 2), elementwise=False)


def packing_with_a_minimum(dtype: Any) -> Case:
    """`pack_matrix` with block scales and minima, for one matrix per row."""

    def draw(rng, rows):
        scale = samples.small_scales(rng, rows, 3, CHANNELS)
        return samples.integers(rng, dtype, rows, 90, CHANNELS), scale, rng.normal(size=scale.shape).astype(np.float32)

    def function(b, scale, minimum):
        return jquant.pack_matrix(b, scale=scale, minimum=minimum, block_size=BLOCK)

    def formula(b, scale, minimum):
        return packed(b, None, scale, minimum=minimum)

    return Case(function, formula, draw, rows=(0, 1, 2), elementwise=False)


# JAX 0.10 cannot split a 4-bit array over a mesh, so cases with such arguments are among the variants.
CASES: dict[str, Case] = {
    "block_scaled_matmul": case(np.uint8, np.int8, 90, as_packed=False),
    "block_scaled_matmul, packed": case(np.uint8, jnp.uint4, 90, as_packed=True),
    "block_scaled_matmul, minimum": case(np.uint8, jnp.uint4, 90, as_packed=True, has_minimum=True),
    "pack_matrix, blocks": packing(np.uint8),
    "pack_matrix, minimum": packing_with_a_minimum(np.int8),
}
VARIANTS: dict[str, Case] = {
    "block_scaled_matmul, int4": case(np.int8, jnp.int4, 90, as_packed=False),
    "block_scaled_matmul, k_parts": case(np.int8, jnp.int4, 128, as_packed=True, has_zero_points=False, k_parts=4),
    "block_scaled_matmul, bfloat16": case(np.int8, np.uint8, 90, as_packed=True, floats=FLOATS[2]),
    "block_scaled_matmul, minimum in float16": case(
        np.int8, np.int8, 90, as_packed=True, floats=FLOATS[1], has_zero_points=False, has_minimum=True
    ),
    "pack_matrix, int4": packing(jnp.int4),
    "pack_matrix, minimum and uint4": packing_with_a_minimum(jnp.uint4),
}
