"""onnxruntime's operators on weights of 2, 4 and 8 bits, quantized in blocks."""

from typing import Any

import jax
import jax.numpy as jnp

from jquant.onnx.converters.quantized_parameters import LEVEL
from jquant.onnx.errors import ModelError
from jquant.onnx.graph import MICROSOFT
from jquant.onnx.registry import converter
from jquant.operators.dequantize_linear import dequantize_linear
from jquant.operators.pack_integers import unpack_integers

_STORED = {2: jnp.uint2, 4: jnp.uint4, 8: jnp.uint8}


def _unpacked(x: jax.Array, bits: int, size: int) -> jax.Array:
    """The integers of this number of bits that bytes hold along the last dimension."""
    if bits not in _STORED:
        raise ModelError(f"bits is {bits}; 2, 4 and 8 are supported")
    return x if bits == 8 else unpack_integers(x, _STORED[bits], size=size)


def _middle(bits: int) -> jax.Array:
    """The zero point of unsigned integers where none is given."""
    return jnp.asarray(2 ** (bits - 1), _STORED[bits])


@converter("MatMulNBits", domain=MICROSOFT)
def product(
    A, B, scales, zero_points=None, g_idx=None, bias=None, *, K, N, bits=4, block_size, accuracy_level=0, weight_prepacked=0
):
    """``A @ B.T + bias`` in floating point, of weights that are dequantized first: the most accurate of its levels.

    The zero points are packed as the weights are, or of the type of the scales. `g_idx` says of which block each
    row of the matrix is.
    """
    if weight_prepacked:
        raise ModelError("weights that are packed for another device are not supported")
    blocks = -(-K // block_size)
    values = _unpacked(B.reshape(N, -1), bits, blocks * block_size)[:, :K]
    scales = scales.reshape(N, blocks)
    is_integer = zero_points is None or zero_points.dtype == jnp.uint8
    if zero_points is not None:
        zero_points = zero_points.reshape(N, -1)
        zero_points = _unpacked(zero_points, bits, blocks) if is_integer else zero_points.reshape(N, blocks)
    if g_idx is not None:
        if bits != 4 or (zero_points is not None and is_integer):  # of which onnxruntime computes something else
            raise ModelError("g_idx is not supported beside packed zero points, nor with other than 4 bits")
        scales = scales[:, g_idx[:K]]
        zero_points = None if zero_points is None else zero_points[:, g_idx[:K]]
        block_size = 1
    zero_points = _middle(bits) if zero_points is None else zero_points
    options = {"axis": 1, "block_size": block_size, "feature_level": LEVEL}
    if is_integer:
        matrix = dequantize_linear(values, scales, zero_points, **options)
    else:
        spread = jnp.repeat(zero_points, block_size, 1)[:, :K].astype(jnp.float32)
        scale = jnp.repeat(scales, block_size, 1)[:, :K].astype(jnp.float32)
        matrix = ((values.astype(jnp.float32) - spread) * scale).astype(scales.dtype)
    result = jnp.matmul(A, matrix.T)
    return result if bias is None else result + bias


@converter("GatherBlockQuantized", domain=MICROSOFT)
def gather(data, indices, scales, zero_points=None, *, bits=4, block_size=128, gather_axis=0, quantize_axis=1):
    """Bytes hold unsigned integers of so many bits along the last dimension; an index outside of the axis gives zeros."""
    if not jnp.issubdtype(data.dtype, jnp.integer):
        raise ModelError(f"data of the type {data.dtype} is not supported")
    gather_axis, quantize_axis = gather_axis % data.ndim, quantize_axis % data.ndim
    if data.dtype == jnp.uint8:
        count = data.shape[-1] * (8 // bits)
        data = _unpacked(data, bits, count)
        zero_points = _middle(bits) if zero_points is None else _unpacked(zero_points, bits, scales.shape[-1])
    size = data.shape[gather_axis]
    flat = indices.reshape(-1)
    inside = (flat >= -size) & (flat < size)
    flat = jnp.where(flat < 0, flat + size, flat)

    def gathered(x: Any) -> Any:
        if x is None or x.ndim == 0:
            return x
        return jnp.take(x, flat, gather_axis, mode="clip")

    options = {"axis": quantize_axis, "block_size": block_size, "feature_level": LEVEL}
    if gather_axis == quantize_axis:
        values = gathered(dequantize_linear(data, scales, zero_points, **options))
    else:
        values = dequantize_linear(gathered(data), gathered(scales), gathered(zero_points), **options)
    inside = inside.reshape(*(-1 if axis == gather_axis else 1 for axis in range(data.ndim)))
    shape = (*data.shape[:gather_axis], *indices.shape, *data.shape[gather_axis + 1 :])
    return jnp.where(inside, values, 0).reshape(shape)
