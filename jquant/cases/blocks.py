"""Products with block scales."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

import jquant
from jquant import reference
from jquant.cases import samples
from jquant.cases.case import CHANNELS, FLOATS, Case
from jquant.packed.block_matrix import Layout, PackedBlockMatrix

BLOCK = 32


def packed(b, zero_point: Any, scale, block_size: int = BLOCK):
    """What `pack_matrix` is documented to make of 4 or 8 bits, in NumPy."""
    *batch, k, n = b.shape
    *_, blocks, _ = scale.shape
    dtype, padding = b.dtype, blocks * block_size - k
    behind = *((0, 0),) * len(batch), (0, padding), (0, 0)
    signed = jnp.iinfo(dtype).min < 0
    if zero_point is not None:
        zero_point = np.broadcast_to(np.asarray(zero_point).astype(np.int8 if signed else np.uint8), scale.shape)
    bits = jnp.iinfo(dtype).bits
    if bits == 8 or block_size % 4:
        data: Any = np.pad((b.astype(np.int16) - (0 if signed or bits == 4 else 128)).astype(np.int8), behind)
        return PackedBlockMatrix(data, scale, zero_point, np.dtype(dtype), block_size, padding, Layout.BYTES)
    nibbles = np.pad((b.astype(np.int8) + (8 if signed else 0)).astype(np.uint16), behind)
    nibbles = nibbles.reshape(*batch, (k + padding) // 4, 4, n)
    words: Any = sum(nibbles[..., place, :] << np.uint16(4 * place) for place in range(4))
    return PackedBlockMatrix(words, scale, zero_point, jnp.dtype(dtype), block_size, padding, Layout.WORDS)


def unpacked(matrix: PackedBlockMatrix):
    """`packed`, undone: the integers and their zero points, in NumPy types."""
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
    a_dtype: Any, b_dtype: Any, k: int, *, as_packed: bool, floats: Any = np.float32, has_zero_points=True, **options: Any
) -> Case:
    """A with a scale and a zero point for each row, B with both for each block of each column, and a bias."""
    blocks = -(-k // BLOCK)

    def draw(rng, rows):
        a = samples.integers(rng, a_dtype, rows, k)
        a_scale, a_zero_point = samples.small_scales(rng, rows, 1, dtype=floats), None
        b = samples.integers(rng, b_dtype, k, CHANNELS)
        b_scale = samples.small_scales(rng, blocks, CHANNELS, dtype=floats)
        b_zero_point = None
        if has_zero_points:
            a_zero_point = samples.integers(rng, a_dtype, rows, 1)
            b_zero_point = samples.integers(rng, b_dtype, *b_scale.shape)
        bias = (rng.normal(size=CHANNELS) * 100).astype(np.float32)
        if as_packed:
            return a, a_scale, a_zero_point, packed(b, b_zero_point, b_scale), None, None, bias
        return a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias

    def formula(a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias):
        if as_packed:
            (plain, b_zero_point), b_scale = unpacked(b), b.scale
        else:
            plain = b
        of_b = plain, np.asarray(b_scale), b_zero_point
        return reference.block_scaled_matmul(a, a_scale, a_zero_point, *of_b, bias, block_size=BLOCK, **options)

    own = {} if as_packed else {"block_size": BLOCK}
    return Case(functools.partial(jquant.block_scaled_matmul, **own, **options), formula, draw, rows=(0, 1, 2))


def packing(dtype: Any) -> Case:
    """One matrix per row."""

    def draw(rng, rows):
        b, zero_point = samples.integers(rng, dtype, rows, 90, CHANNELS), samples.integers(rng, dtype, rows, 3, CHANNELS)
        return b, zero_point, samples.small_scales(rng, rows, 3, CHANNELS)

    def function(b, zero_point, scale):
        return jquant.pack_matrix(b, zero_point, scale=scale, block_size=BLOCK)

    return Case(function, packed, draw, rows=(0, 1, 2))


# A separate 4-bit array, split over a mesh, is more than JAX 0.10 supports, so these are among the variants.
CASES: dict[str, Case] = {
    "block_scaled_matmul": case(np.uint8, np.int8, 90, as_packed=False),
    "block_scaled_matmul, packed": case(np.uint8, jnp.uint4, 90, as_packed=True),
    "pack_matrix, blocks": packing(np.uint8),
}
VARIANTS: dict[str, Case] = {
    "block_scaled_matmul, int4": case(np.int8, jnp.int4, 90, as_packed=False),
    "block_scaled_matmul, k_parts": case(np.int8, jnp.int4, 128, as_packed=True, has_zero_points=False, k_parts=4),
    "block_scaled_matmul, bfloat16": case(np.int8, np.uint8, 90, as_packed=True, floats=FLOATS[2]),
    "pack_matrix, int4": packing(jnp.int4),
}
