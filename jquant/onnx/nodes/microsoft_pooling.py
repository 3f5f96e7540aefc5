"""onnxruntime's averages of quantized tensors, with its arithmetic."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arguments import windows
from jquant.arithmetic import exact, rounding
from jquant.formulas import affine, pooling
from jquant.formulas.windows import Windows
from jquant.onnx.graphs.graph import MICROSOFT
from jquant.onnx.nodes.quantized_parameters import flat, padding_argument
from jquant.onnx.nodes.windows import WindowAttributes, resolve_pool_padding
from jquant.onnx.running.registry import converter
from jquant.quantized_tensor import Quantized, ScaleZeroPoint

_MAX_SLICES = 16  # elements of a window up to which the sum is unrolled: the program grows with them


@converter("QLinearGlobalAveragePool", domain=MICROSOFT, counterparts=("quantized_linear_global_average_pool",))
def global_average_pool(X, x_scale, x_zero_point, y_scale, y_zero_point, *, channels_last=0):
    """An exact integer sum, times one ratio of the scales. The output zero point is added after the rounding."""
    axes = tuple(range(1, X.ndim - 1) if channels_last else range(2, X.ndim))
    total = jnp.sum(affine.difference(Quantized(X, x_scale, flat(x_zero_point))), axes, jnp.int32, keepdims=True)
    count = jnp.float32(math.prod(X.shape[axis] for axis in axes))
    ratio = exact.quotient(flat(x_scale), exact.product(flat(y_scale), count))
    return rounding.nearest_integer(exact.product(total.astype(jnp.float32), ratio), flat(y_zero_point), X.dtype)


@converter("QLinearReduceMean", domain=MICROSOFT)
def reduce_mean(data, data_scale, data_zero_point, reduced_scale, reduced_zero_point=None, *, axes=(), keepdims=1):
    """The mean as onnxruntime documents it: dequantized, averaged and quantized, with an exact integer sum.

    onnxruntime has no kernel for this operator. The float operators that it replaces add in float32, and may round
    differently next to a tie.
    """
    axes = tuple(axes) or tuple(range(data.ndim))
    x = Quantized(data, flat(data_scale), flat(data_zero_point))
    total = jnp.sum(affine.difference(x), axes, jnp.int32, keepdims=bool(keepdims))
    count = jnp.int32(math.prod(data.shape[axis] for axis in axes))
    output = ScaleZeroPoint(flat(reduced_scale), flat(reduced_zero_point))
    return pooling.quantized_average(total, count, x.scale, output, data.dtype)


@converter("QLinearAveragePool", domain=MICROSOFT, counterparts=("quantized_linear_average_pool",))
def average_pool(
    X,
    x_scale,
    x_zero_point,
    y_scale,
    y_zero_point=None,
    *,
    auto_pad="NOTSET",
    ceil_mode=0,
    channels_last=0,
    count_include_pad=0,
    kernel_shape,
    pads=None,
    strides=None,
):
    """Dequantized elements are added in order in float32, and the zero point is added before the last rounding.

    One window over the whole tensor, without padding, is computed as a global average instead.
    """
    x = jnp.moveaxis(X, -1, 1) if channels_last else X
    is_global = tuple(kernel_shape) == x.shape[2:]
    x, attributes, _ = resolve_pool_padding(x, kernel_shape, WindowAttributes(auto_pad, None, pads, strides))
    w = windows.windows("QLinearAveragePool", x.shape[2:], kernel_shape, strides, None, padding_argument(attributes))
    if is_global and not any(map(any, w.padding)):
        x_zero_point, y_zero_point = (
            jnp.zeros((), x.dtype) if each is None else each for each in (x_zero_point, y_zero_point)
        )
        return global_average_pool(X, x_scale, x_zero_point, y_scale, y_zero_point, channels_last=channels_last)
    w = _extended_for_ceil_mode(w, x.shape[2:]) if ceil_mode else w
    value = _sum_in_order(affine.dequantize(Quantized(x, flat(x_scale), flat(x_zero_point))), w)
    count = np.float32(math.prod(kernel_shape)) if count_include_pad else _counts(x.shape[2:], w)
    value = exact.quotient(exact.quotient(value, jnp.asarray(count)), flat(y_scale))
    if y_zero_point is not None:
        value = exact.sum(value, flat(y_zero_point).astype(jnp.float32))
    y = rounding.nearest_integer(value, None, x.dtype)
    return jnp.moveaxis(y, 1, -1) if channels_last else y


def _extended_for_ceil_mode(w: Windows, spatial: tuple[int, ...]) -> Windows:
    """Pads the end for one more window if the last one does not reach it, provided that this window starts inside."""
    padding = []
    for size, window, stride, (low, high) in zip(spatial, w.sizes, w.strides, w.padding, strict=True):
        count = -(-(size + low + high - window) // stride) + 1
        if (count - 1) * stride >= size + low:
            count -= 1
        padding.append((low, max(high, (count - 1) * stride + window - size - low)))
    return w._replace(padding=tuple(padding))


def _padded(x: jax.Array, w: Windows) -> jax.Array:
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * 2 + [(low, high, 0) for low, high in w.padding])


def _sum_in_order(x: jax.Array, w: Windows) -> jax.Array:
    """The sum of each window, in row-major order so that it is rounded as in onnxruntime. Padding adds 0, which is exact."""
    padded, count = _padded(x, w), math.prod(w.sizes)
    if count <= _MAX_SLICES:
        return functools.reduce(exact.sum, w.elements(padded, 2))

    def add(number, total):
        return exact.sum(total, w.element(padded, 2, number))

    return lax.fori_loop(1, count, add, w.element(padded, 2, np.int32(0)))


def _counts(spatial: tuple[int, ...], w: Windows) -> np.ndarray:
    """The number of elements of each window that lie inside the tensor."""
    counts = []
    for size, window, stride, (low, _), window_count in zip(
        spatial, w.sizes, w.strides, w.padding, w.counts(spatial), strict=True
    ):
        first = np.arange(window_count) * stride - low
        counts.append(np.minimum(first + window, size) - np.maximum(first, 0))
    return functools.reduce(np.multiply.outer, counts).astype(np.float32)
