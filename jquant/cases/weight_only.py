"""Cases of onnxruntime's operators on weights of 2 to 8 bits with a scale for each block.

The order of a float sum is not promised. The operands here have so few bits that every sum is exact, in any order and on any
matrix unit; the operator's own tests check the error bound for other operands.
"""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

import jquant
from jquant.cases import samples
from jquant.cases.blocks import packed, unpacked
from jquant.cases.case import CHANNELS, FLOATS, Case
from jquant.reference import linear
from jquant.reference import weight_only as reference

BLOCK = 16
DEPTH, BLOCKS = 40, 3  # the last block is partial


def activations(rng, rows, dtype, depth=DEPTH):
    """8-bit values with nearly the same exponent, also after a caller's product, and some zeros."""
    x = rng.integers(64, 128, (rows, depth)) * rng.choice([-1, 0, 1, 1], (rows, depth))
    return x.astype(np.float32).astype(dtype)


def powers_of_two(rng, *shape: int, dtype: Any) -> np.ndarray:
    """Scales that add no bits to a product."""
    return np.ldexp(np.float32(1), rng.integers(-3, 0, shape)).astype(dtype)


def draw_stored(rng, rows, dtype, bits):
    """The operands of `matmul_n_bits` in the layout of ONNX files."""
    return (
        activations(rng, rows, dtype),
        samples.integers(rng, np.uint8, CHANNELS, BLOCKS, BLOCK * bits // 8),
        powers_of_two(rng, CHANNELS, BLOCKS, dtype=dtype),
        samples.integers(rng, np.uint8, CHANNELS, -(-BLOCKS * bits // 8)),
        None,
        (rng.normal(size=CHANNELS) * 100).astype(dtype),
    )


def matmul_n_bits(dtype, bits) -> Case:
    """`matmul_n_bits`, with float32 activations rounded to bfloat16: a caller's product may have added bits."""

    def rounded(a):
        return lax.reduce_precision(a, 8, 7)

    def function(a, *operands):
        return jquant.matmul_n_bits(rounded(a) if a.dtype == jnp.float32 else a, *operands, bits=bits)

    def formula(a, b, scales, zero_points, g_idx, bias):
        a = a.astype(jnp.bfloat16).astype(np.float32) if a.dtype == np.float32 else a
        weights = reference.block_weights(b, scales, zero_points, a.shape[-1], bits)
        return reference.matmul_with_weights(a, weights, bias)

    return Case(function, formula, functools.partial(draw_stored, dtype=dtype, bits=bits), elementwise=False)


def draw_packed(rng, rows, has_minimum):
    """Activations, a packed matrix and a bias."""
    b, zero_point = (samples.integers(rng, jnp.uint4, size, CHANNELS) for size in (DEPTH, BLOCKS))
    scale, minimum = powers_of_two(rng, BLOCKS, CHANNELS, dtype=np.float32), None
    if has_minimum:  # multiples of the smallest scale, which add few bits
        zero_point, minimum = None, np.ldexp(rng.integers(-16, 16, scale.shape), -3).astype(np.float16)
    matrix = packed(b, zero_point, scale, BLOCK, minimum)
    return activations(rng, rows, jnp.bfloat16), matrix, (rng.normal(size=CHANNELS) * 100).astype(jnp.bfloat16)


def packed_formula(a, matrix, bias):
    """The reference of `matmul_n_bits` with a packed matrix."""
    integers, zero_point = unpacked(matrix)
    scale, zero_point = np.asarray(matrix.scale), np.asarray(0 if zero_point is None else zero_point)
    weights = linear.dequantize_linear(integers, scale, zero_point, axis=0, block_size=BLOCK)
    if matrix.minimum is not None:
        weights = weights + np.repeat(np.asarray(matrix.minimum), BLOCK, axis=0)[: len(weights)].astype(np.float32)
    return reference.matmul_with_weights(a, weights, bias)


def packed_matmul_n_bits(has_minimum: bool) -> Case:
    """`matmul_n_bits` with packed weights that have zero points or a minimum."""

    def function(a, b, bias):
        return jquant.matmul_n_bits(a, b, bias=bias)

    return Case(function, packed_formula, functools.partial(draw_packed, has_minimum=has_minimum), elementwise=False)


def gather_block_quantized(dtype, scale_dtype, bits=4) -> Case:
    """`gather_block_quantized` of 20 slices, with some indices out of range."""
    per_byte = 8 // bits if dtype == np.uint8 else 1

    def draw(rng, rows):
        table = samples.integers(rng, dtype, 20, DEPTH // per_byte)
        indices = rng.integers(-22, 22, rows, np.int32)
        scales = samples.small_scales(rng, 20, BLOCKS, dtype=scale_dtype)
        return table, indices, scales, samples.integers(rng, dtype, 20, -(-BLOCKS // per_byte))

    options = {"block_size": BLOCK, "bits": bits}
    function, formula = (functools.partial(module.gather_block_quantized, **options) for module in (jquant, reference))
    # The gathered integers are stored before they are dequantized.
    return Case(function, formula, draw, rows=(1,), elementwise=False)


CASES: dict[str, Case] = {
    "matmul_n_bits": matmul_n_bits(FLOATS[0], 4),
    "matmul_n_bits, packed": packed_matmul_n_bits(has_minimum=False),
    "matmul_n_bits, minimum": packed_matmul_n_bits(has_minimum=True),
    "gather_block_quantized": gather_block_quantized(np.uint8, FLOATS[0]),
}

VARIANTS: dict[str, Case] = {
    "matmul_n_bits, bfloat16": matmul_n_bits(FLOATS[2], 2),
    "gather_block_quantized, int4": gather_block_quantized(jnp.int4, FLOATS[1]),
    "gather_block_quantized, 2 bits": gather_block_quantized(np.uint8, FLOATS[2], 2),
}
