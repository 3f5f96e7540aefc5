"""Operators on quantized images whose channels are the last dimension, as in files that onnxruntime saves optimized."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from jquant.onnx.graphs.graph import MICROSOFT
from jquant.onnx.nodes.pooling import max_pool
from jquant.onnx.nodes.quantized import require_kernel
from jquant.onnx.nodes.quantized_parameters import convolution_options, flat_pair, with_parameters
from jquant.onnx.nodes.windows import ConvolutionAttributes, WindowAttributes, resolve_padding
from jquant.onnx.running.registry import converter
from jquant.operators.quantized_linear_convolution import quantized_linear_convolution


@converter("QLinearConv", domain=MICROSOFT)
def convolution(
    x,
    x_scale,
    x_zero_point,
    w,
    w_scale,
    w_zero_point,
    y_scale,
    y_zero_point,
    B=None,
    *,
    attributes: ConvolutionAttributes,
    channels_last=0,
):
    """ONNX's QLinearConv; with `channels_last`, the input and the output, but not the filter, have their channels last."""
    require_kernel(w, attributes.kernel_shape)
    dimensions = None
    if channels_last:
        image = (0, x.ndim - 1, *range(1, x.ndim - 1))
        dimensions = lax.ConvDimensionNumbers(image, tuple(range(x.ndim)), image)
    x, attributes = resolve_padding(x, w.shape[2:], attributes, first_axis=1 if channels_last else 2)
    return quantized_linear_convolution(
        *with_parameters(x, x_scale, x_zero_point),
        *with_parameters(w, w_scale, w_zero_point),
        *flat_pair(y_scale, y_zero_point),
        B,
        dimension_numbers=dimensions,
        **convolution_options(attributes),
    )


@converter("NhwcMaxPool", domain=MICROSOFT)
def max_pool_channels_last(x, *, attributes: WindowAttributes, ceil_mode=0, kernel_shape):
    y: Any = max_pool(
        jnp.moveaxis(x, -1, 1), attributes=attributes, ceil_mode=ceil_mode, kernel_shape=kernel_shape, outputs=1
    )
    return jnp.moveaxis(y, 1, -1)
