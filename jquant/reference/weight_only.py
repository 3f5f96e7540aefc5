"""onnxruntime's operators on weights of 2 to 8 bits with a scale for each block."""

import numpy as np
from numpy import float32

from jquant.reference.linear import dequantize_linear


def block_weights(b, scales, zero_points, k, bits, g_idx=None):
    """The weights of `matmul_n_bits`, ``(q - zero_points) * scales`` in float32, of shape (k, columns)."""
    columns, blocks, size = b.shape
    values = unpack_bytes(b, bits).reshape(columns, -1)
    block = np.arange(k) // (size * 8 // bits) if g_idx is None else g_idx
    if zero_points is None:
        zero_points = np.full((columns, blocks), 2 ** (bits - 1), float32)
    elif zero_points.dtype == np.uint8:
        zero_points = unpack_bytes(zero_points, bits)
    with np.errstate(all="ignore"):
        offset = values[:, :k].astype(float32) - zero_points.astype(float32)[:, block]
        return (offset * scales.astype(float32)[:, block]).T


def unpack_bytes(packed, bits):
    """Unpacks unsigned 2-, 4- or 8-bit integers along the last dimension."""
    places = np.arange(packed.shape[-1] * 8 // bits) * bits
    return packed[..., places // 8] >> (places % 8).astype(np.uint8) & np.uint8(2**bits - 1)


def matmul_with_weights(a, weights, bias=None):
    """``a @ weights + bias``: a float64 sum, rounded to float32, plus the bias in float32, rounded to the dtype of `a`."""
    product = (a.astype(np.float64) @ weights.astype(np.float64)).astype(float32)
    return (product if bias is None else product + bias.astype(float32)).astype(a.dtype)


def gather_block_quantized(data, indices, scales, zero_points=None, *, gather_axis=0, quantize_axis=1, block_size, bits=4):
    """Dequantizes all slices and gathers some; an index out of range gathers zeros."""
    if data.dtype == np.uint8:
        data = unpack_bytes(data, bits)
        middle = np.full(scales.shape, 2 ** (bits - 1))
        zero_points = middle if zero_points is None else unpack_bytes(zero_points, bits)[..., : scales.shape[-1]]
    zero_points = np.zeros(scales.shape) if zero_points is None else zero_points
    table = dequantize_linear(data, scales, zero_points, axis=quantize_axis % data.ndim, block_size=block_size)
    size = table.shape[gather_axis]
    table_and_zeros = np.concatenate([table, np.zeros_like(table.take([0], gather_axis))], gather_axis)
    in_range = (indices >= -size) & (indices < size)
    return table_and_zeros.take(np.where(in_range, indices % size, size), gather_axis)
