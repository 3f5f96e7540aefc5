"""The integer operators that fusion substitutes for DequantizeLinear, an operator and QuantizeLinear.

Their names and arithmetic are those of jquant's operators. Scales and zero points of activations have one element.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from jquant.lowering import materialize
from jquant.onnx.converters.quantized_parameters import LEVEL, padding, plain, windows
from jquant.onnx.converters.windows import resolved, resolved_pool
from jquant.onnx.graph import JQUANT
from jquant.onnx.registry import converter
from jquant.operators.convolution_integer_to_float import convolution_integer_to_float
from jquant.operators.matmul_integer_to_float import matmul_integer_to_float
from jquant.operators.quantized_gemm import quantized_gemm
from jquant.operators.quantized_linear_add import quantized_linear_add
from jquant.operators.quantized_linear_average_pool import quantized_linear_average_pool
from jquant.operators.quantized_linear_concat import quantized_linear_concat
from jquant.operators.quantized_linear_convolution import quantized_linear_convolution
from jquant.operators.quantized_linear_global_average_pool import quantized_linear_global_average_pool
from jquant.operators.quantized_linear_leaky_relu import quantized_linear_leaky_relu
from jquant.operators.quantized_linear_matmul import quantized_linear_matmul
from jquant.operators.quantized_linear_multiply import quantized_linear_multiply
from jquant.operators.quantized_linear_sigmoid import quantized_linear_sigmoid
from jquant.operators.quantized_linear_softmax import quantized_linear_softmax
from jquant.packed.matrix import PackedMatrix


def _integers(operator: str, packs: Mapping[str, str] | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A converter whose integer result is in memory before anything reads it.

    Otherwise XLA:CPU recomputes all element-wise operations for each reader, and for each element of a convolution's
    windows: text recognition took seven times as long.
    """

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def stored(*operands, **attributes):
            return materialize.stored(function(*operands, **attributes))

        return converter(operator, domain=JQUANT, packs=packs)(stored)

    return enter


def _weights(b, b_scale, b_zero_point):
    """Packed weights hold their zero point."""
    return b, plain(b_scale), None if isinstance(b, PackedMatrix) else plain(b_zero_point)


def _with_matrices(product, a, b):
    """``product(a, b)``. A vector is a row on the left and a column on the right, as in ONNX."""
    vectors = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    if not vectors:
        return product(a, b)
    found = product(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b)
    return jnp.squeeze(found, vectors)


@_integers("quantized_linear_matmul", packs={"b": "b_zero_point"})
def matmul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point, *, output_dtype):
    def product(a, b):
        weights = _weights(b, b_scale, b_zero_point)
        one, output = (plain(a_scale), plain(a_zero_point)), (plain(y_scale), plain(y_zero_point))
        return quantized_linear_matmul(a, *one, *weights, *output, output_dtype=output_dtype, feature_level=LEVEL)

    return _with_matrices(product, a, b)


@converter("matmul_integer_to_float", domain=JQUANT, packs={"b": "b_zero_point"})
def matmul_to_float(a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias=None, *, transA=0, transB=0):
    """The bias is that of Gemm, which broadcasts."""
    a, b = a.T if transA else a, b.T if transB else b
    bias = bias.reshape(1, 1) if bias is not None and bias.ndim == 0 else bias

    def product(a, b):
        weights = _weights(b, b_scale, b_zero_point)
        return matmul_integer_to_float(a, plain(a_scale), plain(a_zero_point), *weights, bias, feature_level=LEVEL)

    return _with_matrices(product, a, b)


@_integers("quantized_gemm", packs={"b": "b_zero_point"})
def gemm(
    a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point, c=None, *, transA=0, transB=0, output_dtype
):
    a, b = a.T if transA else a, b.T if transB else b
    weights = _weights(b, b_scale, b_zero_point)
    output = plain(y_scale), plain(y_zero_point)
    return quantized_gemm(a, plain(a_scale), plain(a_zero_point), *weights, c, *output, output_dtype=output_dtype)


@_integers("quantized_linear_convolution")
def convolution(
    x,
    x_scale,
    x_zero_point,
    w,
    w_scale,
    w_zero_point,
    y_scale,
    y_zero_point,
    bias=None,
    *,
    auto_pad="NOTSET",
    dilations=None,
    group=1,
    kernel_shape=None,
    pads=None,
    strides=None,
    output_dtype,
):
    x, pads = resolved(x, w.shape[2:], strides, dilations, pads, auto_pad)
    return quantized_linear_convolution(
        *(
            x,
            plain(x_scale),
            plain(x_zero_point),
            w,
            plain(w_scale),
            plain(w_zero_point),
            plain(y_scale),
            plain(y_zero_point),
        ),
        bias,
        output_dtype=output_dtype,
        **windows(dilations, group, pads, strides),
    )


@converter("convolution_integer_to_float", domain=JQUANT)
def convolution_to_float(
    x,
    x_scale,
    x_zero_point,
    w,
    w_scale,
    w_zero_point,
    bias=None,
    *,
    auto_pad="NOTSET",
    dilations=None,
    group=1,
    kernel_shape=None,
    pads=None,
    strides=None,
):
    x, pads = resolved(x, w.shape[2:], strides, dilations, pads, auto_pad)
    return convolution_integer_to_float(
        *(x, plain(x_scale), plain(x_zero_point), w, plain(w_scale), plain(w_zero_point), bias),
        **windows(dilations, group, pads, strides),
    )


@_integers("quantized_linear_add")
def add(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point, *, output_dtype):
    scales = map(plain, (a_scale, a_zero_point)), map(plain, (b_scale, b_zero_point)), map(plain, (y_scale, y_zero_point))
    return quantized_linear_add(*(a, *scales[0], b, *scales[1], *scales[2]), output_dtype=output_dtype, feature_level=LEVEL)


@_integers("quantized_linear_multiply")
def multiply(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point, *, output_dtype):
    one, other = (a, plain(a_scale), plain(a_zero_point)), (b, plain(b_scale), plain(b_zero_point))
    return quantized_linear_multiply(*one, *other, plain(y_scale), plain(y_zero_point), output_dtype=output_dtype)


@_integers("quantized_linear_concat")
def concat(y_scale, y_zero_point, *triples, axis, output_dtype):
    """Takes its operands as onnxruntime's QLinearConcat does: a tensor, its scale and its zero point, repeatedly."""
    inputs = [(values, plain(scale), plain(zero)) for values, scale, zero in zip(*[iter(triples)] * 3, strict=True)]
    return quantized_linear_concat(inputs, plain(y_scale), plain(y_zero_point), axis=axis, output_dtype=output_dtype)


def _unary(x, *scales):
    return x, *map(plain, scales)


@_integers("quantized_linear_leaky_relu")
def leaky_relu(x, x_scale, x_zero_point, y_scale, y_zero_point, *, alpha=0.01):
    return quantized_linear_leaky_relu(*_unary(x, x_scale, x_zero_point, y_scale, y_zero_point), alpha=alpha)


@_integers("quantized_linear_sigmoid")
def sigmoid(x, x_scale, x_zero_point, y_scale, y_zero_point):
    return quantized_linear_sigmoid(*_unary(x, x_scale, x_zero_point, y_scale, y_zero_point))


@_integers("quantized_linear_softmax")
def softmax(x, x_scale, x_zero_point, y_scale, y_zero_point, *, axis=-1):
    return quantized_linear_softmax(*_unary(x, x_scale, x_zero_point, y_scale, y_zero_point), axis=axis)


@_integers("quantized_linear_average_pool")
def average_pool(
    x,
    x_scale,
    x_zero_point,
    y_scale,
    y_zero_point,
    *,
    kernel_shape,
    auto_pad="NOTSET",
    count_include_pad=0,
    dilations=None,
    pads=None,
    strides=None,
    output_dtype,
):
    x, pads, _ = resolved_pool(x, kernel_shape, strides, dilations, pads, auto_pad)
    return quantized_linear_average_pool(
        *_unary(x, x_scale, x_zero_point, y_scale, y_zero_point),
        window_sizes=kernel_shape,
        strides=strides,
        dilations=dilations,
        padding=padding(pads),
        include_padding=bool(count_include_pad),
        output_dtype=output_dtype,
        feature_level=LEVEL,
    )


@_integers("quantized_linear_global_average_pool")
def global_average_pool(x, x_scale, x_zero_point, y_scale, y_zero_point):
    return quantized_linear_global_average_pool(*_unary(x, x_scale, x_zero_point, y_scale, y_zero_point))


@converter("clamp", domain=JQUANT)
def clamp(x, *, low, high):
    """For integers."""
    return jnp.clip(x, jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype))
