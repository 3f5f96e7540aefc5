"""onnxruntime's operators on 2-, 4- and 8-bit weights that are quantized in blocks."""

import jax.numpy as jnp

from jquant.errors import ModelError
from jquant.onnx import n_bits
from jquant.onnx.graph import MICROSOFT
from jquant.onnx.registry import converter
from jquant.operators.gather_block_quantized import gather_block_quantized
from jquant.operators.matmul_n_bits import matmul_n_bits
from jquant.packed.block_matrix import PackedBlockMatrix


@converter("MatMulNBits", domain=MICROSOFT, packs_blocks=True)
def matmul(
    A, B, scales, zero_points=None, g_idx=None, bias=None,
    *, K=None, N=None, bits=4, block_size=None, accuracy_level=0, weight_prepacked=0,
):  # fmt: skip
    """Computes in float at every `accuracy_level`: the level is a lower bound, and float is the most accurate.

    `g_idx` holds the block of each row of the matrix. Weights without any bytes are zeros.
    """
    if isinstance(B, PackedBlockMatrix):
        return matmul_n_bits(A, B, bias=bias)
    if weight_prepacked:
        raise ModelError("weights packed for another device are not supported")
    K, N, bits, block_size = n_bits.sizes(K, N, bits, block_size)
    if B.size == 0:
        zeros = jnp.zeros((*A.shape[:-1], N), A.dtype)
        return zeros if bias is None else zeros + bias
    if g_idx is not None:
        if bits != 4 or (zero_points is not None and zero_points.dtype == jnp.uint8):
            # for which onnxruntime's results differ
            raise ModelError("g_idx is not supported with packed zero points, and only with 4 bits")
        g_idx = g_idx[:K]
    weights = B.reshape(N, -(-K // block_size), block_size * bits // 8)
    return matmul_n_bits(A, weights, scales, zero_points, g_idx, bias, bits=bits)


@converter("GatherBlockQuantized", domain=MICROSOFT)
def gather(data, indices, scales, zero_points=None, *, bits=4, block_size=128, gather_axis=0, quantize_axis=1):
    if not jnp.issubdtype(data.dtype, jnp.integer):
        raise ModelError(f"data of type {data.dtype} is not supported")
    return gather_block_quantized(
        data,
        indices,
        scales,
        zero_points,
        gather_axis=gather_axis,
        quantize_axis=quantize_axis,
        block_size=block_size,
        bits=bits,
    )
