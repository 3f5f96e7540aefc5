"""ONNX's own quantized operators."""

import jax.numpy as jnp
import onnx

from jquant.onnx.registry import converter
from jquant.operators.dequantize_linear import dequantize_linear
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear
from jquant.operators.matmul_integer import matmul_integer
from jquant.operators.quantize_linear import quantize_linear
from jquant.packed_matrix import PackedMatrix

_LEVEL = "EXTENDED"


def _dtype(output_dtype: int):
    return onnx.helper.tensor_dtype_to_np_dtype(output_dtype) if output_dtype else None


@converter("QuantizeLinear", since=10)
def quantize(x, y_scale, y_zero_point=None, *, axis=1, block_size=0, output_dtype=0, precision=0, saturate=1):
    options = {"axis": axis, "block_size": block_size or None} if y_scale.size != 1 or y_scale.ndim > 1 else {}
    return quantize_linear(x, y_scale, y_zero_point, output_dtype=_dtype(output_dtype), feature_level=_LEVEL, **options)


@converter("DequantizeLinear", since=10)
def dequantize(x, x_scale, x_zero_point=None, *, axis=1, block_size=0, output_dtype=0):
    options = {"axis": axis, "block_size": block_size or None} if x_scale.size != 1 or x_scale.ndim > 1 else {}
    return dequantize_linear(x, x_scale, x_zero_point, output_dtype=_dtype(output_dtype), feature_level=_LEVEL, **options)


@converter("DynamicQuantizeLinear", since=11)
def dynamic_quantize(x, *, where=None):
    """With a mask, the range is that of the positions that count; 0 is in every range."""
    if where is None:
        return tuple(dynamic_quantize_linear(x))
    _, scale, zero_point = dynamic_quantize_linear(jnp.where(where, x, 0))
    return quantize_linear(x, scale, zero_point), scale, zero_point


@converter("MatMulInteger", since=10, packs={"b": "b_zero_point"})
def integer_product(a, b, a_zero_point=None, b_zero_point=None):
    b_zero_point = None if isinstance(b, PackedMatrix) else b_zero_point
    return matmul_integer(a, b, a_zero_point, b_zero_point, feature_level=_LEVEL)
