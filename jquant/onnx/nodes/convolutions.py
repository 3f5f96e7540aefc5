"""Convolutions with 1 to 3 spatial dimensions."""

import functools
import itertools
import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.onnx.nodes.sampling import sample
from jquant.onnx.nodes.vectors import along_axis
from jquant.onnx.nodes.windows import ConvolutionAttributes, Window, WindowAttributes, resolve_padding
from jquant.onnx.running.registry import converter

_MAX_TAPS = 64  # elements of a depthwise filter that is unrolled into one product each


@converter("Conv", since=1)
def convolution(x, w, b=None, *, attributes: ConvolutionAttributes):
    """A filter of one element is multiplied as a matrix, without transposing the image."""
    kernel = attributes.kernel_shape or w.shape[2:]
    x, attributes = resolve_padding(x, kernel, attributes)
    window = Window.from_attributes(x.shape, kernel, attributes)
    if attributes.group == 1 and window.is_point:
        columns = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
        y = jnp.matmul(w.reshape(w.shape[:2]), columns).reshape(x.shape[0], w.shape[0], *x.shape[2:])
    elif attributes.group == x.shape[1] > 1 and math.prod(window.kernel) <= _MAX_TAPS:
        y = lax.platform_dependent(
            x, w, cpu=functools.partial(_depthwise, window), default=functools.partial(_grouped, window, attributes.group)
        )
    else:
        y = _grouped(window, attributes.group, x, w)
    return _add_bias(y, b)


def _grouped(window, group, x, w):
    return lax.conv_general_dilated(
        x, w, window.strides, window.pads, rhs_dilation=window.dilations, feature_group_count=group
    )


def _depthwise(window, x, w):
    """A depthwise convolution as a sum of products of the whole image: XLA:CPU's own is 5 to 40 times slower."""
    dtype = x.dtype
    wide = jnp.promote_types(dtype, jnp.float32)
    shape = window.shape(x.shape[2:])
    x = lax.pad(x, jnp.zeros((), dtype), [(low, high, 0) for low, high in window.padding])
    x = jnp.repeat(x, w.shape[0] // x.shape[1], 1)
    steps = (1, 1, *window.strides)
    terms = []
    for tap in np.ndindex(*window.kernel):
        first = [index * dilation for index, dilation in zip(tap, window.dilations, strict=True)]
        last = [start + (size - 1) * step + 1 for start, size, step in zip(first, shape, window.strides, strict=True)]
        pixels = lax.slice(x, (0, 0, *first), (*x.shape[:2], *last), steps)
        factors = w[(slice(None), 0, *tap)].reshape(-1, *(1,) * len(shape))
        terms.append(pixels.astype(wide) * factors.astype(wide))
    return functools.reduce(jnp.add, terms).astype(dtype)


def _add_bias(y, b):
    return y if b is None else y + b.reshape(-1, *(1,) * (y.ndim - 2))


@converter("ConvTranspose", since=1)
def transposed_convolution(x, w, b=None, *, attributes: ConvolutionAttributes, output_padding=None, output_shape=None):
    """The padding crops the result. Where the result extends beyond the reach of the filter, it is 0."""
    kernel = w.shape[2:]
    rank = len(kernel)
    strides, dilations = attributes.strides or [1] * rank, attributes.dilations or [1] * rank
    spans = attributes.spans(kernel)
    uncropped = [(size - 1) * stride + span for size, stride, span in zip(x.shape[2:], strides, spans, strict=True)]
    crops = _crops(
        x.shape[2:],
        uncropped,
        strides=strides,
        auto_pad=attributes.auto_pad,
        pads=attributes.pads,
        output_padding=output_padding or [0] * rank,
        output_shape=output_shape,
    )
    if list(kernel) == strides and dilations == [1] * rank and attributes.group == 1 and not any(map(any, crops)):
        return _add_bias(_without_overlap(x, w), b)
    filters = jnp.flip(w, range(2, w.ndim)).reshape(attributes.group, -1, *w.shape[1:])  # (group, C / group, M / group, ...)
    filters = filters.swapaxes(1, 2).reshape(-1, filters.shape[1], *kernel)
    padding = [(span - 1 - low, span - 1 - high) for span, (low, high) in zip(spans, crops, strict=True)]
    y = lax.conv_general_dilated(
        x, filters, (1,) * rank, padding, lhs_dilation=strides, rhs_dilation=dilations, feature_group_count=attributes.group
    )
    return _add_bias(y, b)


def _crops(shape, uncropped, *, strides, auto_pad, pads, output_padding, output_shape):
    """How many elements to crop at both ends of each dimension of the result; negative where it grows.

    Args:
      shape, uncropped: the spatial sizes of the input, and those of the result before cropping.
    """
    if output_shape is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):  # the result does not grow, as in onnxruntime
        lengths = [size + extra for size, extra in zip(uncropped, output_padding, strict=True)]
        output_shape = [min(size * stride, length) for size, stride, length in zip(shape, strides, lengths, strict=True)]
    if output_shape is None:
        rank = len(shape)
        pads = pads if pads and auto_pad == "NOTSET" else [0] * 2 * rank
        return [(pads[i], pads[i + rank] - output_padding[i]) for i in range(rank)]
    crops = []
    for size, output_size, extra in zip(uncropped, output_shape[-len(uncropped) :], output_padding, strict=True):
        total = max(0, size + extra - output_size)
        low = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        crops.append((low, size - output_size - low))
    return crops


def _without_overlap(x, w):
    """A transposed convolution whose stride is the size of its filter: each element of the result is a single product."""
    rank = x.ndim - 2
    y = lax.dot_general(w, x, (((0,), (1,)), ((), ())))  # (M, *kernel, N, *shape)
    order = [1 + rank, 0, *itertools.chain(*((2 + rank + i, 1 + i) for i in range(rank)))]
    shape = [size * step for size, step in zip(x.shape[2:], w.shape[2:], strict=True)]
    return y.transpose(order).reshape(x.shape[0], w.shape[1], *shape)


@converter("DeformConv", since=19)
def deformable_convolution(
    x, w, offset, b=None, mask=None, *, dilations=None, group, kernel_shape=None, offset_group, pads=None, strides=None
):
    """Each element of a filter is moved by an offset in each dimension, and reads the image by linear interpolation."""
    kernel = w.shape[2:]
    rank = len(kernel)
    window = Window.from_attributes(x.shape, kernel, WindowAttributes(dilations=dilations, pads=pads, strides=strides))
    shape = window.shape(x.shape[2:])
    batch, tap_count = x.shape[0], int(np.prod(kernel))
    offset = offset.reshape(batch * offset_group, tap_count, rank, *shape)
    taps = np.stack(np.meshgrid(*map(np.arange, kernel), indexing="ij")).reshape(rank, tap_count)
    positions = []
    for i in range(rank):
        start = np.arange(shape[i]) * window.strides[i] - window.pads[i][0]
        start = along_axis(start, i, rank)
        tap = taps[i].reshape(-1, *(1,) * rank) * window.dilations[i]
        positions.append(offset[:, :, i] + jnp.asarray(start + tap, offset.dtype))
    images = x.reshape(batch * offset_group, -1, *x.shape[2:])
    columns = sample(images, positions, "linear", "zeros")  # (batch * offset groups, channels, taps, *shape)
    if mask is not None:
        columns = columns * mask.reshape(batch * offset_group, 1, tap_count, *shape)
    columns = columns.reshape(batch, group, -1, int(np.prod(shape)))
    filters = w.reshape(group, w.shape[0] // group, -1)
    return _add_bias(jnp.einsum("ngkp,gmk->ngmp", columns, filters).reshape(batch, w.shape[0], *shape), b)


@converter("Col2Im", since=18, static=("image_shape", "block_shape"))
def image_from_columns(input, image_shape, block_shape, *, dilations=None, pads=None, strides=None):
    """Adds the blocks where they overlap."""
    image, block = image_shape.tolist(), block_shape.tolist()
    rank = len(image)
    channels = input.shape[1] // int(np.prod(block))
    window = Window.from_attributes((1, 1, *image), block, WindowAttributes(dilations=dilations, pads=pads, strides=strides))
    blocks = input.reshape(input.shape[0], channels, -1, *window.shape(image))
    padded_shape = [size + low + high for size, (low, high) in zip(image, window.pads, strict=True)]
    padded = jnp.zeros((input.shape[0], channels, *padded_shape), input.dtype)
    for number, element in enumerate(np.ndindex(*block)):
        starts = [element[i] * window.dilations[i] for i in range(rank)]
        pixels = [
            slice(starts[i], starts[i] + blocks.shape[3 + i] * window.strides[i], window.strides[i]) for i in range(rank)
        ]
        padded = padded.at[(slice(None), slice(None), *pixels)].add(blocks[:, :, number])
    inside = [slice(low, low + size) for size, (low, _) in zip(image, window.pads, strict=True)]
    return padded[(slice(None), slice(None), *inside)]
