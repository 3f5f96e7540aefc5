"""onnxruntime's products of quantized matrices, with its arithmetic."""

import itertools

import jax.numpy as jnp

from jquant.arithmetic import exact
from jquant.onnx.graphs.graph import MICROSOFT
from jquant.onnx.nodes.quantized_parameters import FEATURE_LEVEL, any_batched, as_matrices, flat, integer_product
from jquant.onnx.running import parameter_rules
from jquant.onnx.running.registry import converter
from jquant.onnx.writing import quantized_products as products
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.table import writer
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear
from jquant.operators.matmul_integer import matmul_integer
from jquant.operators.matmul_integer_to_float import matmul_integer_to_float
from jquant.operators.quantized_gemm import quantized_gemm
from jquant.packed.matrix import PackedMatrix

_ONE = (), (1,)  # the shapes of a single scale


@converter("QGemm", domain=MICROSOFT, packs={"B": "b_zero_point"}, transposed_by="transB", counterparts=("quantized_gemm",))
def gemm(
    A, a_scale, a_zero_point, B, b_scale, b_zero_point, C=None, y_scale=None, y_zero_point=None,
    *, alpha=1.0, transA=0, transB=0,
):  # fmt: skip
    """Without an output scale, the result is float32. The bias is an integer, added before multiplying by `alpha`."""
    a = A.T if transA else A
    is_packed = isinstance(B, PackedMatrix)
    b, b_zero_point = (B, None) if is_packed else (B.T if transB else B, flat(b_zero_point))
    a_scale = flat(a_scale) if alpha == 1 else exact.product(flat(a_scale), jnp.float32(alpha))
    if y_scale is not None:
        return quantized_gemm(
            a,
            a_scale=a_scale,
            a_zero_point=flat(a_zero_point),
            b=b,
            b_scale=flat(b_scale),
            b_zero_point=b_zero_point,
            c=C,
            output_scale=flat(y_scale),
            output_zero_point=flat(y_zero_point),
        )
    total = matmul_integer(a, b, flat(a_zero_point), b_zero_point, feature_level=FEATURE_LEVEL)
    total = total if C is None else total + C
    return exact.product(total.astype(jnp.float32), exact.product(a_scale, flat(b_scale)))


@converter("MatMulIntegerToFloat", domain=MICROSOFT, packs={"B": "b_zero_point"}, counterparts=("matmul_integer_to_float",))
def matmul_to_float(A, B, a_scale, b_scale, a_zero_point=None, b_zero_point=None, bias=None):
    """The scales may be in either order."""
    if a_scale.shape not in _ONE and a_scale.shape in parameter_rules.columns(B.shape):
        a_scale, b_scale = b_scale, a_scale
    return _to_float(A, a_scale, a_zero_point, B, b_scale, b_zero_point, bias)


@converter("DynamicQuantizeMatMul", domain=MICROSOFT, packs={"B": "b_zero_point"})
def dynamic_matmul(A, B, b_scale, b_zero_point=None, bias=None, *, where=None):
    """A is quantized to uint8 by its range; with a mask, by the range of the positions that count."""
    a, a_scale, a_zero_point = dynamic_quantize_linear(A, where=where)
    return _to_float(a, a_scale, a_zero_point, B, b_scale, b_zero_point, bias)


def _to_float(A, a_scale, a_zero_point, B, b_scale, b_zero_point, bias):
    """A scale of another shape than that of one, or of one per column of B, is multiplied last, after the bias is added."""
    is_late = a_scale.shape not in _ONE, b_scale.shape not in parameter_rules.columns(B.shape)
    scales = a_scale, b_scale
    a_scale, b_scale = (jnp.ones((), x.dtype) if late else x for x, late in zip(scales, is_late, strict=True))
    bias = None if bias is None else bias.reshape(-1)
    y = _with_bias(A, a_scale, a_zero_point, B, b_scale, b_zero_point, bias)
    for scale in itertools.compress(scales, is_late):
        y = exact.product(y, scale.reshape(scale.shape[max(0, scale.ndim - y.ndim) :]))
    return y


def _with_bias(A, a_scale, a_zero_point, B, b_scale, b_zero_point, bias):
    a, b, shape = as_matrices(A, B)
    b_zero_point = None if isinstance(b, PackedMatrix) else flat(b_zero_point)
    a_scale, a_zero_point, b_scale = flat(a_scale), flat(a_zero_point), flat(b_scale)
    if not any_batched(b_scale, b_zero_point):
        return matmul_integer_to_float(
            a,
            a_scale=a_scale,
            a_zero_point=a_zero_point,
            b=b,
            b_scale=b_scale,
            b_zero_point=b_zero_point,
            bias=bias,
            feature_level=FEATURE_LEVEL,
        ).reshape(shape)
    product = integer_product(a, b, a_zero_point, b_zero_point).astype(jnp.float32)
    product = exact.product(product, exact.product(a_scale, b_scale))
    return (product if bias is None else exact.sum(product, bias)).reshape(shape)


@writer("quantized_gemm", node="QGemm", domain=MICROSOFT)
def _write_gemm(builder: Builder, types, *, a, b, c, output, output_dtype, implementation):
    operands = products.linear_operands(builder, a, b, output, output_dtype)
    if operands is None:
        return None
    inputs = [*operands.a, *operands.b, c, *operands.output]
    return builder.node("QGemm", inputs, types[0], domain=MICROSOFT, label="quantized")
