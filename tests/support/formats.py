"""Weights in each format, by hand: with jquant's public operators, and with the formulas of `jquant.reference`.

A matrix has the shape (..., K, N), as in `jquant.transform.formats.weight_formats`, with which this shares no code.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jquant
from jquant import transform
from jquant.reference import blocks as blocks_reference
from jquant.reference import linear as linear_reference
from jquant.reference import microscaling as microscaling_reference

MICROSCALING = {
    "MXFP8E4M3FN": "float8_e4m3fn",
    "MXFP8E5M2": "float8_e5m2",
    "MXFP6E2M3FN": "float6_e2m3fn",
    "MXFP6E3M2FN": "float6_e3m2fn",
    "MXFP4": "float4_e2m1fn",
    "MXINT8": "int8",
}
FLOAT8 = {"FLOAT8E4M3FN": ("float8_e4m3fn", 448), "FLOAT8E5M2": ("float8_e5m2", 57344)}
INTEGERS = "INT8", "UINT8", "INT4", "UINT4", "INT2"


class Quantized(NamedTuple):
    """A quantized matrix: its elements, and the scales and zero points of blocks, of shape (..., G, N)."""

    values: Any
    scale: Any
    zero_point: Any
    block_size: int


def is_in_columns(scheme: transform.Scheme) -> bool:
    """Whether weights are 8-bit integers with one scale per column or tensor that are multiplied by integers."""
    is_int8 = scheme.weight_type in ("INT8", "UINT8") and scheme.block_size is None
    return is_int8 and scheme.activations != transform.Activations.FLOAT


def is_for_filters(scheme: transform.Scheme) -> bool:
    """Whether convolutions take the format of the weights; else they stay float."""
    return scheme.block_size is None and scheme.weight_type in ("INT8", *FLOAT8)


def quantize(array: Any, matrix: Any, scheme: transform.Scheme) -> Quantized:
    """A matrix in the format of a scheme. `array` is NumPy, for its formulas, or `jax.numpy`, for jquant's operators."""
    by_numpy, name, rows = array is np, scheme.weight_type, matrix.shape[-2]
    if name in MICROSCALING:
        size = scheme.block_size or 32
        convert = microscaling_reference.mx_quantize if by_numpy else jquant.mx_quantize
        return Quantized(*convert(matrix, MICROSCALING[name], axis=-2, block_size=size), None, size)
    if name == "NVFP4":
        convert = microscaling_reference.nvfp4_quantize if by_numpy else jquant.nvfp4_quantize
        values, scale, tensor_scale = convert(matrix, axis=-2)
        return Quantized(values, scale, tensor_scale, 16)
    size = scheme.block_size or (-(-rows // 4) * 4 if name in INTEGERS else rows)
    dtype = jnp.dtype(FLOAT8[name][0] if name in FLOAT8 else name.lower())
    scale, zero_point = _parameters(array, matrix, size, scheme, dtype)
    scale = scale.astype(jnp.dtype(scheme.scale_type.lower()))
    if by_numpy:
        axis = matrix.ndim - 2
        values = linear_reference.quantize_linear(
            matrix, scale, 0 if zero_point is None else zero_point, dtype, axis=axis, block_size=size
        )
    else:
        values = jquant.quantize_linear(
            matrix, scale, zero_point, axis=-2, block_size=size, output_dtype=dtype, feature_level="EXTENDED"
        )
    return Quantized(values, scale, zero_point, size)


def as_integers(array: Any, weights: Quantized, x_scale: Any, scheme: transform.Scheme) -> tuple[Quantized, Any]:
    """Floats as the integers that a product multiplies, with smaller scales; and the scales of its input."""
    name, (values, scale, tensor_scale, size) = scheme.weight_type, weights
    if name == "NVFP4":
        x_scale = array.asarray(x_scale) * array.asarray(tensor_scale)
    if scale.dtype not in (jnp.float8_e8m0fnu, jnp.float8_e4m3fn):  # they are stored as integers
        return Quantized(values, scale, None if name == "NVFP4" else tensor_scale, size), x_scale
    factor = np.float32(2 ** {"MXFP6E2M3FN": 3, "MXINT8": 6}.get(name, 1))
    floats = dequantize(array, Quantized(values, array.ones_like(scale), np.float32(1), size), scheme, np.float32)
    return Quantized((floats * factor).astype(np.int8), scale.astype(np.float32) / factor, None, size), x_scale


def unpacked(array: Any, stored: Mapping[str, Any]) -> Quantized:
    """Weights that a quantized function stores, integers of one layer, in the same form, with a dimension for a batch."""
    values = stored["values"]
    if isinstance(values, jquant.PackedMatrix):
        scale, zero_point, block_size = stored["scale"][..., None, :], None, values.shape[-2]
    else:
        scale, zero_point, block_size = values.scale, values.zero_point, values.block_size
    arrays = (values.unpack(), scale, zero_point if zero_point is None else zero_point.astype(values.dtype))
    if "tensor_scale" in stored:
        arrays = (*arrays[:2], stored["tensor_scale"])
        return Quantized(
            *(array.asarray(each).reshape(-1, *each.shape[-2:]) if each.ndim else each for each in arrays), block_size
        )
    batched = (each if each is None else each.reshape(-1, *each.shape[-2:]) for each in arrays)
    return Quantized(*(each if each is None else array.asarray(each) for each in batched), block_size)


def _parameters(array: Any, matrix: Any, size: int, scheme: transform.Scheme, dtype: Any) -> tuple[Any, Any]:
    """The scale in float32 and the zero point of each block."""
    *batch, rows, columns = matrix.shape
    blocks = -(-rows // size)
    padding = [(0, 0)] * len(batch) + [(0, blocks * size - rows), (0, 0)]
    in_blocks = array.pad(array.asarray(matrix, np.float32), padding).reshape(*batch, blocks, size, columns)
    over = -2 if scheme.weights == jquant.ScaleGranularity.PER_CHANNEL else None

    def each(extreme: Any) -> Any:
        return array.broadcast_to(extreme, (*batch, blocks, 1, columns)).reshape(*batch, blocks, columns)

    low, high = each(in_blocks.min(over, keepdims=True)), each(in_blocks.max(over, keepdims=True))
    if scheme.weight_type in FLOAT8:
        scale = np.asarray(array.maximum(-low, high)) / np.float32(FLOAT8[scheme.weight_type][1])
        return array.asarray(np.where(scale < np.finfo(np.float32).tiny, np.float32(1), scale)), None
    function = linear_reference.scale_and_zero_point if array is np else jquant.scale_and_zero_point
    if scheme.weight_type.startswith("U"):
        return tuple(function(low, high, dtype))
    if scheme.weight_type == "INT4":  # as Q4_0 of GGUF has them
        low, high = np.minimum(np.asarray(low), 0), np.maximum(np.asarray(high), 0)
        scale = np.where(high > -low, high, low) / np.float32(-8)
        return array.asarray(np.where(np.abs(scale) < np.finfo(np.float32).tiny, np.float32(1), scale)), None
    return function(low, high, dtype, symmetric=True, narrow_range=True)[0], None


def dequantize(array: Any, quantized: Quantized, scheme: transform.Scheme, dtype: Any) -> Any:
    """The float matrix of `dtype`."""
    values, scale, zero_point, size = quantized
    by_numpy, name = array is np, scheme.weight_type
    if name in (*MICROSCALING, "NVFP4") and scale.dtype == jnp.bfloat16:  # stored as integers
        rows = values.shape[-2]
        floats = values.astype(np.float32) * array.repeat(scale.astype(np.float32), size, axis=-2)[..., :rows, :]
        return (floats if zero_point is None else floats * zero_point).astype(dtype)
    if name in MICROSCALING:
        if by_numpy:
            return microscaling_reference.mx_dequantize(
                values, scale, MICROSCALING[name], axis=-2, block_size=size, dtype=dtype
            )
        return jquant.mx_dequantize(
            values, scale, element_type=MICROSCALING[name], axis=-2, block_size=size, output_dtype=dtype
        )
    if name == "NVFP4":
        if by_numpy:
            return microscaling_reference.nvfp4_dequantize(values, scale, zero_point, axis=-2, dtype=dtype)
        return jquant.nvfp4_dequantize(values, scale, zero_point, axis=-2, output_dtype=dtype)
    if by_numpy:
        axis = values.ndim - 2
        zero_point = 0 if zero_point is None else zero_point
        return linear_reference.dequantize_linear(values, scale, zero_point, axis=axis, block_size=size, dtype=dtype)
    keywords = {"axis": -2, "block_size": size, "output_dtype": dtype, "feature_level": "EXTENDED"}
    return jquant.dequantize_linear(values, scale, zero_point, **keywords)


def rounded(array: Any, w: Any, over: tuple[int, ...], scheme: transform.Scheme, dtype: Any) -> Any:
    """Weights, quantized in blocks along the dimensions `over` and dequantized."""
    order = [*over, *(dimension for dimension in range(w.ndim) if dimension not in over)]
    sizes = [w.shape[dimension] for dimension in order]
    matrix = w.transpose(order).reshape(int(np.prod(sizes[: len(over)])), -1)
    matrix = dequantize(array, quantize(array, matrix, scheme), scheme, dtype)
    return matrix.reshape(sizes).transpose(np.argsort(order))


def multiply_integers(array: Any, x: Any, scale: Any, zero_point: Any, weights: Quantized, dtype: Any) -> Any:
    """The product of integers, (batch, M, K), with one scale or those of rows, (batch, M), and of weights in blocks."""
    if array is np:
        operands = x, scale[..., None] if np.ndim(scale) else scale, zero_point, weights.values, weights.scale
        return blocks_reference.block_scaled_matmul(
            *operands, weights.zero_point, block_size=weights.block_size, dtype=dtype
        )

    def product(x: Any, scale: Any, values: Any, weights_scale: Any, weights_zero_point: Any) -> Any:
        packed = jquant.pack_matrix(values, weights_zero_point, scale=weights_scale, block_size=weights.block_size)
        return jquant.block_scaled_matmul(x, scale, zero_point, packed, output_dtype=dtype)

    operands = x, jnp.asarray(scale), weights.values, weights.scale, weights.zero_point
    return for_each_matrix(product, operands)


def multiply_floats(x: jax.Array, weights: Quantized, scheme: transform.Scheme) -> jax.Array:
    """The product of rows of floats, (batch, M, K), and of integers in blocks, by `matmul_n_bits`."""
    compute_dtype = "BFLOAT16" if x.dtype == jnp.bfloat16 else None

    def product(x: Any, values: Any, scale: Any, zero_point: Any) -> Any:
        if scheme.weight_type == "INT2":
            padding = [(0, scale.shape[0] * weights.block_size - values.shape[0]), (0, 0)]
            codes = jnp.pad(values.astype(jnp.int8), padding) + np.int8(2)
            codes = codes.T.reshape(codes.shape[1], scale.shape[0], weights.block_size).astype(jnp.uint2)
            scales = scale.T.astype(x.dtype)
            return jquant.matmul_n_bits(x, jquant.pack_integers(codes), scales, bits=2, compute_dtype=compute_dtype)
        packed = jquant.pack_matrix(values, zero_point, scale=scale, block_size=weights.block_size)
        return jquant.matmul_n_bits(x, packed, compute_dtype=compute_dtype)

    return for_each_matrix(product, (x, weights.values, weights.scale, weights.zero_point))


def for_each_matrix(product: Any, operands: tuple) -> jax.Array:
    """``product(*operands)`` for each matrix of a batch; scalars are those of all matrices."""
    if len(operands[0]) == 1:
        return product(*jax.tree.map(lambda array: array[0] if array.ndim else array, operands))[None]
    axes = tuple(None if operand is None or operand.ndim == 0 else 0 for operand in operands)
    return jax.vmap(product, axes)(*operands)
