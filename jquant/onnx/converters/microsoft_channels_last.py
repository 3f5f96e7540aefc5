"""Operators on quantized images whose channels are the last dimension, as in files that onnxruntime saves optimized."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from jquant.onnx.converters.pooling import max_pool
from jquant.onnx.converters.quantized import require_kernel
from jquant.onnx.converters.quantized_parameters import plain, windows
from jquant.onnx.converters.windows import resolved
from jquant.onnx.graph import MICROSOFT
from jquant.onnx.registry import converter
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
    auto_pad="NOTSET",
    channels_last=0,
    dilations=None,
    group=1,
    kernel_shape=None,
    pads=None,
    strides=None,
):
    """That of ONNX; with `channels_last`, the input and the output, but not the filter, have their channels last."""
    require_kernel(w, kernel_shape)
    dimensions = None
    if channels_last:
        image = (0, x.ndim - 1, *range(1, x.ndim - 1))
        dimensions = lax.ConvDimensionNumbers(image, tuple(range(x.ndim)), image)
    x, pads = resolved(x, w.shape[2:], strides, dilations, pads, auto_pad, first=1 if channels_last else 2)
    of_x, of_w = (x, plain(x_scale), plain(x_zero_point)), (w, plain(w_scale), plain(w_zero_point))
    options = windows(dilations, group, pads, strides)
    output = plain(y_scale), plain(y_zero_point)
    return quantized_linear_convolution(*of_x, *of_w, *output, B, dimension_numbers=dimensions, **options)


@converter("NhwcMaxPool", domain=MICROSOFT)
def max_pool_of_channels_last(x, *, auto_pad="NOTSET", ceil_mode=0, dilations=None, kernel_shape, pads=None, strides=None):
    window = {"dilations": dilations, "kernel_shape": kernel_shape, "pads": pads, "strides": strides}
    y: Any = max_pool(jnp.moveaxis(x, -1, 1), auto_pad=auto_pad, ceil_mode=ceil_mode, outputs=1, **window)
    return jnp.moveaxis(y, 1, -1)
