"""The integer operators that fusion substitutes for DequantizeLinear, an operator and QuantizeLinear.

Their names and arithmetic are those of jquant's operators. Scales and zero points of activations have one element.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jquant.arithmetic import lookup
from jquant.lowering import materialize
from jquant.onnx.graphs.graph import JQUANT
from jquant.onnx.nodes.quantized_parameters import (
    FEATURE_LEVEL,
    convolution_options,
    flat,
    flat_pair,
    padding_argument,
    with_parameters,
)
from jquant.onnx.nodes.windows import ConvolutionAttributes, WindowAttributes, resolve_padding, resolve_pool_padding
from jquant.onnx.running.registry import converter
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


def _stored_converter(
    operator: str, packs: Mapping[str, str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A converter whose integer result is stored in memory before anything reads it.

    Otherwise XLA:CPU recomputes all element-wise operations for each reader, and for each element of a convolution's
    windows: text recognition took seven times as long.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def stored(*operands, **attributes):
            return materialize.stored(function(*operands, **attributes))

        return converter(operator, domain=JQUANT, packs=packs)(stored)

    return decorate


def _with_matrices(product, a, b):
    """``product(a, b)``, for which a vector is a row on the left and a column on the right, as in ONNX."""
    vector_axes = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    if not vector_axes:
        return product(a, b)
    matrix = product(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b)
    return jnp.squeeze(matrix, vector_axes)


@_stored_converter("quantized_linear_matmul", packs={"b": "b_zero_point"})
def matmul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point, *, output_dtype):
    def product(a, b):
        return quantized_linear_matmul(
            *with_parameters(a, a_scale, a_zero_point),
            *with_parameters(b, b_scale, b_zero_point),
            *flat_pair(y_scale, y_zero_point),
            output_dtype=output_dtype,
            feature_level=FEATURE_LEVEL,
        )

    return _with_matrices(product, a, b)


@converter("matmul_integer_to_float", domain=JQUANT, packs={"b": "b_zero_point"})
def matmul_to_float(a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias=None, *, transA=0, transB=0):
    """The bias is that of Gemm, which broadcasts."""
    a, b = a.T if transA else a, b.T if transB else b
    bias = bias.reshape(1, 1) if bias is not None and bias.ndim == 0 else bias

    def product(a, b):
        return matmul_integer_to_float(
            *with_parameters(a, a_scale, a_zero_point),
            *with_parameters(b, b_scale, b_zero_point),
            bias,
            feature_level=FEATURE_LEVEL,
        )

    return _with_matrices(product, a, b)


@_stored_converter("quantized_gemm", packs={"b": "b_zero_point"})
def gemm(
    a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point, c=None, *, transA=0, transB=0, output_dtype
):
    a, b = a.T if transA else a, b.T if transB else b
    return quantized_gemm(
        *with_parameters(a, a_scale, a_zero_point),
        *with_parameters(b, b_scale, b_zero_point),
        c,
        *flat_pair(y_scale, y_zero_point),
        output_dtype=output_dtype,
    )


@_stored_converter("quantized_linear_convolution")
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
    attributes: ConvolutionAttributes,
    output_dtype,
):
    x, attributes = resolve_padding(x, w.shape[2:], attributes)
    return quantized_linear_convolution(
        *with_parameters(x, x_scale, x_zero_point),
        *with_parameters(w, w_scale, w_zero_point),
        *flat_pair(y_scale, y_zero_point),
        bias,
        output_dtype=output_dtype,
        **convolution_options(attributes),
    )


@converter("convolution_integer_to_float", domain=JQUANT)
def convolution_to_float(
    x, x_scale, x_zero_point, w, w_scale, w_zero_point, bias=None, *, attributes: ConvolutionAttributes
):
    x, attributes = resolve_padding(x, w.shape[2:], attributes)
    return convolution_integer_to_float(
        *with_parameters(x, x_scale, x_zero_point),
        *with_parameters(w, w_scale, w_zero_point),
        bias,
        **convolution_options(attributes),
    )


@_stored_converter("quantized_linear_add")
def add(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point, *, output_dtype):
    return quantized_linear_add(
        *with_parameters(a, a_scale, a_zero_point),
        *with_parameters(b, b_scale, b_zero_point),
        *flat_pair(y_scale, y_zero_point),
        output_dtype=output_dtype,
        feature_level=FEATURE_LEVEL,
    )


@_stored_converter("quantized_linear_multiply")
def multiply(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point, *, output_dtype):
    return quantized_linear_multiply(
        *with_parameters(a, a_scale, a_zero_point),
        *with_parameters(b, b_scale, b_zero_point),
        *flat_pair(y_scale, y_zero_point),
        output_dtype=output_dtype,
    )


@_stored_converter("quantized_linear_concat")
def concat(y_scale, y_zero_point, *triples, axis, output_dtype):
    """Takes its operands as onnxruntime's QLinearConcat does: a tensor, its scale and its zero point, repeatedly."""
    inputs = [with_parameters(*triple) for triple in zip(*[iter(triples)] * 3, strict=True)]
    return quantized_linear_concat(inputs, *flat_pair(y_scale, y_zero_point), axis=axis, output_dtype=output_dtype)


def _tabulated(function, x, table, parameters):
    """``function(x, *parameters)``, whose results for all integers may be known: then they are `table`.

    The callers are jitted: one program computes the tables of all nodes while a model is loaded, and calls outside `jit`
    compile nothing anew.
    """
    leaves, tree = jax.tree.flatten(tuple(map(flat, parameters)))

    def of_leaves(x, *leaves, once):
        del once
        return function(x, *tree.unflatten(leaves))

    return lookup.elementwise(of_leaves, x, *leaves, table=table)


@_stored_converter("quantized_linear_leaky_relu")
@functools.partial(jax.jit, static_argnames="alpha")
def leaky_relu(x, table, *parameters, alpha=0.01):
    return _tabulated(functools.partial(quantized_linear_leaky_relu, alpha=alpha), x, table, parameters)


@_stored_converter("quantized_linear_sigmoid")
@jax.jit
def sigmoid(x, table, *parameters):
    return _tabulated(quantized_linear_sigmoid, x, table, parameters)


@_stored_converter("quantized_linear_times_sigmoid")
@jax.jit
def times_sigmoid(x, table, *parameters):
    """The parameters are those of the sigmoid, and after them those of the product."""

    def function(x, s_scale, s_zero_point, gate_scale, gate_zero_point, x_scale, x_zero_point, *product_parameters):
        gate = quantized_linear_sigmoid(x, s_scale, s_zero_point, gate_scale, gate_zero_point)
        return quantized_linear_multiply(x, x_scale, x_zero_point, gate, *product_parameters)

    return _tabulated(function, x, table, parameters)


@_stored_converter("quantized_linear_softmax")
def softmax(x, x_scale, x_zero_point, y_scale, y_zero_point, *, axis=-1):
    return quantized_linear_softmax(*with_parameters(x, x_scale, x_zero_point), *flat_pair(y_scale, y_zero_point), axis=axis)


@_stored_converter("quantized_linear_average_pool")
def average_pool(
    x,
    x_scale,
    x_zero_point,
    y_scale,
    y_zero_point,
    *,
    attributes: WindowAttributes,
    kernel_shape,
    count_include_pad=0,
    output_dtype,
):
    x, attributes, _ = resolve_pool_padding(x, kernel_shape, attributes)
    return quantized_linear_average_pool(
        *with_parameters(x, x_scale, x_zero_point),
        *flat_pair(y_scale, y_zero_point),
        window_sizes=kernel_shape,
        strides=attributes.strides,
        dilations=attributes.dilations,
        padding=padding_argument(attributes),
        include_padding=bool(count_include_pad),
        output_dtype=output_dtype,
        feature_level=FEATURE_LEVEL,
    )


@_stored_converter("quantized_linear_global_average_pool")
def global_average_pool(x, x_scale, x_zero_point, y_scale, y_zero_point):
    return quantized_linear_global_average_pool(
        *with_parameters(x, x_scale, x_zero_point), *flat_pair(y_scale, y_zero_point)
    )


@converter("clamp", domain=JQUANT)
def clamp(x, *, low, high):
    """Clips integers."""
    return jnp.clip(x, jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype))
