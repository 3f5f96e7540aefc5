"""onnxruntime's operators on 2-, 4- and 8-bit weights that are quantized in blocks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError
from jquant.formulas import lookup
from jquant.onnx.fusing import tied_embeddings
from jquant.onnx.graphs import n_bits
from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, JQUANT, MICROSOFT
from jquant.onnx.nodes.quantized_parameters import FEATURE_LEVEL
from jquant.onnx.running.registry import converter
from jquant.onnx.writing import block_weights
from jquant.onnx.writing.block_weights import BlockWeights
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast, elementwise, reshape
from jquant.onnx.writing.table import writer
from jquant.operators.block_scaled_matmul import block_scaled_matmul
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear
from jquant.operators.gather_block_quantized import gather_block_quantized
from jquant.operators.matmul_n_bits import matmul_n_bits
from jquant.packed.block_matrix import PackedBlockMatrix


@converter("MatMulNBits", domain=MICROSOFT, packs_blocks=True, counterparts=("matmul_n_bits", "block_scaled_matmul"))
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


@converter(n_bits.OF_INT8_ROWS, domain=JQUANT, packs_blocks=True)
def matmul_of_int8_rows(
    A, B, scales, zero_points=None, g_idx=None, bias=None,
    *, K=None, N=None, bits=4, block_size=None, accuracy_level=0, weight_prepacked=0,
):  # fmt: skip
    """Each row of A is rounded to int8, by its own scale, if the weights are known."""
    if not isinstance(B, PackedBlockMatrix):
        sizes = {"K": K, "N": N, "bits": bits, "block_size": block_size}
        return matmul(A, B, scales, zero_points, g_idx, bias, **sizes, weight_prepacked=weight_prepacked)
    rows, scale, _ = dynamic_quantize_linear(A, axis=-1, symmetric=True, output_dtype=np.int8, feature_level=FEATURE_LEVEL)
    return block_scaled_matmul(rows, scale, None, B, bias=bias, output_dtype=A.dtype)


@converter("GatherBlockQuantized", domain=MICROSOFT, counterparts=("gather_block_quantized",))
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


@converter(tied_embeddings.COLUMNS, domain=JQUANT, packs_blocks=True)
def columns(indices, B, scales, zero_points=None, *, K, N, bits, block_size):
    """The rows of an embedding table, of which MatMulNBits has the transposed matrix."""
    if isinstance(B, PackedBlockMatrix):
        return lookup.columns(B, jnp.asarray(indices))
    table, scales = B.reshape(N, K * bits // 8), scales.reshape(N, -1)
    return gather_block_quantized(table, indices, scales, zero_points, block_size=block_size, bits=bits)


@writer("matmul_n_bits", node="MatMulNBits", domain=MICROSOFT)
def _write_matmul(builder: Builder, types, *, a, b, bias, bits, compute_dtype):
    """For known weights, with an `accuracy_level` that keeps the floats of A."""
    stored = _of_weights(builder, block_weights.stored, a, b, bits, compute_dtype)
    if stored is None:
        return None
    operands, attributes = stored

    def multiply(rows):
        type = jax.ShapeDtypeStruct((*rows.shape[:-1], attributes["N"]), np.float32)
        return builder.node("MatMulNBits", [rows, *operands], type, domain=MICROSOFT, label="product", **attributes)

    return _with_floats(builder, types[0], a, bias, multiply)


@writer("matmul_n_bits", node="MatMul", since=13)
def _write_matmul_of_dequantized(builder: Builder, types, *, a, b, bias, bits, compute_dtype):
    """For known weights, which are dequantized while the model runs."""
    matrix = _of_weights(builder, block_weights.dequantized, a, b, bits, compute_dtype)
    if matrix is None:
        return None

    def multiply(rows):
        type = jax.ShapeDtypeStruct((*rows.shape[:-1], matrix.shape[-1]), np.float32)
        return builder.node("MatMul", [rows, matrix], type, since=13, label="product")

    return _with_floats(builder, types[0], a, bias, multiply)


def _of_weights(builder: Builder, make: Callable[[Builder, BlockWeights], Any], a, b, bits: int, compute_dtype) -> Any:
    """What is made of the weights, once for all products by them; None if they are not known, or if A is."""
    if a.known is not None or compute_dtype != np.float32 or a.shape[-1] == 0:
        return None

    def made() -> Any:
        weights = _weights(builder, b, bits, a.shape[-1])
        return None if weights is None else make(builder, weights)

    return builder.once((make, a.shape[-1], bits, *jax.tree.leaves(b)), made)


def _weights(builder: Builder, b, bits: int, rows: int) -> BlockWeights | None:
    """Known weights. Their integers take several times the memory of what is made of them, and are not kept."""
    if isinstance(b, PackedBlockMatrix):
        return block_weights.of_packed(builder, b)
    return None if b.g_idx is not None else block_weights.of_stored(b.b, b.scales, b.zero_points, bits, rows)


def _with_floats(builder: Builder, type, a, bias, multiply):
    """A product of rows in float32, and the bias, in the type of the result."""
    rows = cast(builder, a if a.ndim > 1 else reshape(builder, a, (1, *a.shape)), np.float32)
    product = multiply(rows)
    if bias is not None:
        product = elementwise(builder, "Add", product, cast(builder, bias, np.float32))
    return cast(builder, reshape(builder, product, type.shape), type.dtype)


@writer("gather_block_quantized", node="GatherBlockQuantized", domain=MICROSOFT)
def _write_gather(
    builder: Builder, types, *, data, indices, scales, zero_points, gather_axis, quantize_axis, block_size, bits
):
    """For indices inside of the axis: ONNX has no others. Not every onnxruntime has a kernel for integers of 2 bits."""
    if scales.dtype not in (np.float32, np.float16) or bits == 2 or indices.known is not None:
        return None
    if data.dtype != np.uint8:
        builder.shared.require("GatherBlockQuantized", DEFAULT_DOMAIN, 21)  # the first one with integers of 4 bits
    attributes = {"gather_axis": gather_axis, "quantize_axis": quantize_axis, "block_size": block_size}
    if data.dtype == np.uint8:
        attributes["bits"] = bits
    operands = [data, indices, scales, zero_points]
    return builder.node("GatherBlockQuantized", operands, types[0], domain=MICROSOFT, label="rows", **attributes)
