"""Sums and extremes of windows, as pooling makes them."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jquant import jaxprs
from jquant.errors import ModelError
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.primitives.reductions import MONOIDS, Monoid, monoid_of
from jquant.onnx.writing.primitives.shapes import spread
from jquant.onnx.writing.steps import computed, elementwise, is_float, like, padded, reshape, sliced, transpose
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Tensor, is_static
from jquant.onnx.writing.windows import attributes as window_attributes

_NAMES = {"reduce_window_sum": "add", "reduce_window_max": "max", "reduce_window_min": "min"}


class Window(NamedTuple):
    """The windows along a dimension: how many elements each has, how far apart these are, and how far apart the windows."""

    size: int
    stride: int
    padding: tuple[int, int]
    dilation: int

    @property
    def changes(self) -> bool:
        return self != (1, 1, (0, 0), 1)

    @property
    def span(self) -> int:
        return (self.size - 1) * self.dilation + 1


@primitive("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window")
def _pooled(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    x, *starts = operands
    parameters, name = equation.params, _NAMES.get(equation.primitive.name)
    if name is None:
        name = monoid_of(jaxprs.closed(parameters["jaxpr"]).jaxpr)
        if len(starts) != 1 or starts[0].known is None or starts[0].item() != MONOIDS[name].identity(x.dtype):
            raise ModelError("is written for a start that the function leaves as it is")
    windows = [
        Window(int(size), int(stride), (int(low), int(high)), int(dilation))
        for size, stride, (low, high), dilation in zip(
            *(parameters[key] for key in ("window_dimensions", "window_strides", "padding", "window_dilation")), strict=True
        )
    ]
    monoid = MONOIDS[name]
    distances = [int(distance) for distance in parameters["base_dilation"]]
    nothing = monoid.nothing(x.dtype)
    x = spread(builder, x, nothing, distances)
    type = equation.outvars[0].aval
    pooled = builder.attempt(lambda: _pool(builder, name, x, windows, type)) if is_static(x.shape) else None
    return _joined_parts(builder, monoid, x, windows) if pooled is None else pooled


def _pool(builder: Builder, name: str, x: Tensor, windows: Sequence[Window], type: Any) -> Tensor | None:
    """MaxPool, or AveragePool times the size of a window, which both have 1 to 3 dimensions behind two others."""
    spatial = [d for d, window in enumerate(windows) if window.changes]
    others = [d for d in range(x.ndim) if d not in spatial]
    sizes = [windows[d] for d in spatial]
    is_pooled = is_float(x.dtype) or (name == "max" and x.dtype in (np.int8, np.uint8))
    # Padding of a window's size or more leaves windows without elements, of which ONNX does not say what they are.
    is_inside = all(0 <= side < window.size for window in sizes for side in window.padding)
    if not 1 <= len(spatial) <= 3 or not is_pooled or not is_inside or name not in ("add", "max", "min"):
        return None
    order = [*others, *spatial]
    moved = transpose(builder, x, order)
    lead = tuple(moved.shape[: len(others)])
    outside = lead if len(lead) == 2 else (1, math.prod(lead))
    moved = reshape(builder, moved, (*outside, *moved.shape[len(others) :]))
    pooled = _pool_of(builder, name, moved, sizes, (*outside, *(type.shape[d] for d in spatial)))
    pooled = reshape(builder, pooled, (*lead, *pooled.shape[2:]))
    return transpose(builder, pooled, np.argsort(order).tolist())


def _pool_of(builder: Builder, name: str, x: Tensor, windows: Sequence[Window], shape: tuple[int, ...]) -> Tensor:
    strides, dilations, padding = zip(*((window.stride, window.dilation, window.padding) for window in windows), strict=True)
    attributes = {
        "kernel_shape": [window.size for window in windows],
        **window_attributes(strides, dilations, padding),
    }
    type = jax.ShapeDtypeStruct(shape, x.dtype)
    if name == "add":
        since = 19 if attributes["dilations"] else 13
        count = 1 if attributes["pads"] else None
        mean = computed(builder, "AveragePool", [x], type, since=since, count_include_pad=count, **attributes)
        return elementwise(builder, "Mul", mean, like(mean, math.prod(window.size for window in windows)))
    if name == "max":
        return computed(builder, "MaxPool", [x], type, since=13, **attributes)
    largest = computed(builder, "MaxPool", [elementwise(builder, "Neg", x)], type, since=13, **attributes)
    return elementwise(builder, "Neg", largest)


def _joined_parts(builder: Builder, monoid: Monoid, x: Tensor, windows: Sequence[Window]) -> Tensor:
    """One dimension after the other: the first elements of all windows, joined with the second ones, and so on."""
    x = padded(builder, x, monoid.nothing(x.dtype), [window.padding for window in windows])
    for dimension, window in enumerate(windows):
        if not window.changes:
            continue
        count = (x.shape[dimension] - window.span) // window.stride + 1
        parts = []
        for element in range(window.size):
            starts, limits, strides = [0] * x.ndim, list(x.shape), [1] * x.ndim
            starts[dimension] = element * window.dilation
            limits[dimension] = starts[dimension] + (count - 1) * window.stride + 1
            strides[dimension] = window.stride
            parts.append(sliced(builder, x, starts, limits, strides))
        x = functools.reduce(lambda a, b: monoid.joined(builder, a, b), parts)
    return x
