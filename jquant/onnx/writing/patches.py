"""A convolution of integers as a product: rows are windows of the input, side by side, columns are filters.

onnxruntime's ConvInteger takes 20 times as long (3 x 3 windows of 64 channels), because only its MatMulInteger is
vectorized and multithreaded.
"""

import itertools
import math

import numpy as np

from jquant.formulas.convolution_geometry import Geometry
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.convolution_layouts import arranged_input
from jquant.onnx.writing.integer_products import integer_product
from jquant.onnx.writing.steps import cast, joined, padded, reshape, sliced, transpose
from jquant.onnx.writing.tensor import Tensor, known


def convolution(
    builder: Builder, x: Tensor, w: Tensor, x_zero_point: Tensor | None, w_zero_point: Tensor | None, geometry: Geometry
) -> Tensor:
    """The convolution of ``x - x_zero_point`` and ``w - w_zero_point`` in int32, without groups, with filters last.

    Args:
      x: in the layout of the geometry, with mapped dimensions before it; padded with its zero point.
      w: in the layout of the geometry.
      x_zero_point: one element; None for 0.
      w_zero_point: one element, or one for each filter; None for 0.
    """
    filters, channels, *space = geometry.dimensions.rhs_spec
    matrix = transpose(builder, w, (*space, channels, filters))
    matrix = reshape(builder, matrix, (math.prod(matrix.shape[:-1]), matrix.shape[-1]))
    rows = _windows(builder, arranged_input(builder, x, geometry, channels_last=True), x_zero_point, geometry)
    if w_zero_point is not None:
        w_zero_point = reshape(builder, w_zero_point, (math.prod(w_zero_point.shape),))
    return integer_product(builder, rows, matrix, x_zero_point, w_zero_point)


def _windows(builder: Builder, x: Tensor, zero_point: Tensor | None, geometry: Geometry) -> Tensor:
    """The elements of each window, in the order of the window and of the channels, along the last dimension."""
    windows = geometry.windows
    before = x.ndim - 1 - len(windows.sizes)
    edge = known(np.zeros((), x.dtype)) if zero_point is None else reshape(builder, cast(builder, zero_point, x.dtype), ())
    counts = windows.counts(x.shape[before:-1])
    x = padded(builder, x, edge, [(0, 0)] * before + [(int(low), int(high)) for low, high in windows.padding] + [(0, 0)])
    parts = []
    for element in itertools.product(*map(range, windows.sizes)):
        starts = [index * dilation for index, dilation in zip(element, windows.dilations, strict=True)]
        limits = [
            start + (count - 1) * stride + 1 for start, count, stride in zip(starts, counts, windows.strides, strict=True)
        ]
        parts.append(
            sliced(
                builder,
                x,
                [0] * before + starts + [0],
                [*x.shape[:before], *limits, x.shape[-1]],
                [1] * before + list(windows.strides) + [1],
            )
        )
    return joined(builder, parts, x.ndim - 1)
