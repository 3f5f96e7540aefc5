"""Calls of the convolution, and the same convolutions in NumPy."""

import itertools
import math
from typing import NamedTuple

import calls
import draw
import numpy as np
from calls import BYTES, DEQUANTIZE, FLOATS, REQUANTIZE, RESCALE, ZERO_POINTS

ROLES = (*ZERO_POINTS, "integer_bias", *DEQUANTIZE, *REQUANTIZE)


class Window(NamedTuple):
    """A window along one dimension; `count` are those that fit."""

    image: int
    size: int
    stride: int = 1
    dilation: int = 1
    padding: int = 0
    count: int = 1


class ConvolutionCall(NamedTuple):
    """A convolution. Each array has three dimensions, and goes with the role of the same position."""

    image: np.ndarray
    filter: np.ndarray
    windows: tuple[Window, ...]
    groups: int = 1
    channels_last: bool = False
    filters_last: bool = False
    arrays: tuple[np.ndarray, ...] = ()
    roles: tuple[str, ...] = ()
    dtype: np.dtype = np.dtype(np.int32)

    @property
    def target(self) -> str:
        return calls.CONVOLUTION

    @property
    def operands(self) -> tuple[np.ndarray, ...]:
        return self.image, self.filter, *self.arrays

    @property
    def attributes(self) -> dict[str, object]:
        _, sizes, strides, dilations, padding, _ = (np.array(values) for values in zip(*self.windows, strict=True))
        names = "sizes", "strides", "dilations", "padding"
        values = dict(zip(names, (sizes, strides, dilations, padding), strict=True))
        flags = {"channels_last": self.channels_last, "filters_last": self.filters_last, "groups": np.int64(self.groups)}
        return flags | values

    @property
    def filters(self) -> int:
        return self.filter.shape[1 if self.filters_last else 0]

    @property
    def shape(self) -> tuple[int, ...]:
        counts = tuple(window.count for window in self.windows)
        return (len(self.image), *counts, self.filters) if self.channels_last else (len(self.image), self.filters, *counts)

    def describe(self) -> str:
        of_arrays = ", ".join(f"{role} {array.shape}" for role, array in zip(self.roles, self.arrays, strict=True))
        options = f"{self.windows}, {self.groups=}, {self.channels_last=}, {self.filters_last=}"
        operands = f"{self.image.dtype}{self.image.shape} * {self.filter.dtype}{self.filter.shape}"
        return f"{operands} to {self.dtype}{self.shape}, {options}, {of_arrays}"


def expected(call: ConvolutionCall) -> np.ndarray:
    """The result in NumPy: for each group, the product of its filters and of a matrix of its windows."""
    named = dict(zip(call.roles, call.arrays, strict=True))
    of_image, of_filter = ZERO_POINTS if call.channels_last else ZERO_POINTS[::-1]
    image = np.moveaxis(call.image, -1, 1) if call.channels_last else call.image
    image = image.astype(np.int64) - named.get(of_image, np.zeros((1, 1, 1))).astype(np.int64).reshape(())
    windows = _windows(image, call.windows)  # (batch, channels, elements, windows)
    batch, channels, elements, count = windows.shape
    of_group = channels // call.groups
    filter = (call.filter.T if call.filters_last else call.filter).astype(np.int64)
    filter = filter.reshape(call.groups, call.filters // call.groups, of_group * elements)
    if of_filter in named:
        zero_point = calls.b_zero_point(named, call.filter.dtype).swapaxes(1, 2) if call.channels_last else named[of_filter]
        filter = filter - zero_point
    if call.channels_last:
        filter = filter.reshape(*filter.shape[:2], elements, of_group).swapaxes(2, 3)
    filter = filter.reshape(*filter.shape[:2], of_group * elements)
    matrix = windows.reshape(batch, call.groups, of_group * elements, count)
    total = filter @ matrix  # (batch, groups, filters, windows)
    if call.channels_last:
        result = calls.completed(total.swapaxes(2, 3), named, call.dtype).transpose(0, 2, 1, 3)
    else:
        result = calls.completed(total, named, call.dtype)
    return result.reshape(call.shape)


def _windows(image: np.ndarray, windows: tuple[Window, ...]) -> np.ndarray:
    """The elements of all windows, of shape (batch, channels, elements, windows)."""
    for axis, window in enumerate(windows, start=2):
        places = np.arange(window.size)[:, None] * window.dilation + np.arange(window.count) * window.stride - window.padding
        padding = np.zeros((*image.shape[:axis], 1, *image.shape[axis + 1 :]), np.int64)
        padded = np.concatenate([image, padding], axis)
        inside = (places >= 0) & (places < window.image)
        elements = np.take(padded, np.where(inside, places, window.image), axis)
        image = np.moveaxis(elements, axis, -1)  # the elements of the window come last, in the order of the dimensions
    rank = len(windows)
    image = np.moveaxis(image, range(-rank, 0), range(2, 2 + rank))
    sizes, counts = (math.prod(getattr(window, name) for window in windows) for name in ("size", "count"))
    return image.reshape(*image.shape[:2], sizes, counts)


def check(*calls_: ConvolutionCall) -> None:
    """Compares the results of calls, which are made in one program, with NumPy's."""
    calls.check(*calls_, expected=expected)


def window(rng: np.random.Generator, most: int) -> Window:
    """One that fits into an image of up to `most` elements, with any padding."""
    image, size = int(rng.integers(1, most + 1)), int(rng.choice([1, 1, 2, 3, 3, 5, 7]))
    stride, dilation = int(rng.choice([1, 1, 2, 3, 4])), int(rng.choice([1, 1, 1, 2, 3]))
    low, high = rng.integers(-2, 4, 2)
    extent = (size - 1) * dilation + 1
    high = max(int(high), extent - image - int(low))  # for at least one window
    return Window(image, size, stride, dilation, int(low), (image + int(low) + high - extent) // stride + 1)


def call(
    rng: np.random.Generator,
    windows: tuple[Window, ...],
    channels: int,
    filters: int,
    roles: tuple[str, ...] = (),
    *,
    batch: int = 1,
    groups: int = 1,
    channels_last: bool = False,
    filters_last: bool = False,
    dtype: np.dtype = np.int32,
    only: tuple[int, ...] | None = None,
) -> ConvolutionCall:
    """A convolution of random operands, with so many channels and filters in each group."""
    space = tuple(window.image for window in windows)
    sizes = (batch, *space, groups * channels) if channels_last else (batch, groups * channels, *space)
    depth = channels * math.prod(window.size for window in windows)
    filter_sizes = (depth, groups * filters) if filters_last else (groups * filters, depth)
    image = draw.matrix(rng, sizes, rng.choice(BYTES), only)
    filter = draw.matrix(rng, filter_sizes, rng.choice(BYTES), only)
    of_image = ZERO_POINTS[0 if channels_last else 1]

    def array(role: str) -> np.ndarray:
        by_filter = (groups, 1, filters) if channels_last else (groups, filters, 1)
        is_single = role in (of_image, "row_scale", "output_scale", "zero_point") or rng.integers(2)
        values = draw.array(rng, role, (1, 1, 1) if is_single else by_filter, np.dtype(dtype))
        if role != of_image:
            return values
        limits = np.iinfo(image.dtype)
        return rng.integers(limits.min, limits.max + 1, (1, 1, 1), np.int32).astype(rng.choice([np.int32, image.dtype]))

    arrays = tuple(map(array, roles))
    return ConvolutionCall(image, filter, windows, groups, channels_last, filters_last, arrays, roles, np.dtype(dtype))


def any_call(rng: np.random.Generator, most_elements: int = 400) -> ConvolutionCall:
    """A convolution of any kind."""
    dimensions = int(rng.integers(1, 4))
    windows = tuple(window(rng, (0, most_elements // 4, 30, 8)[dimensions]) for _ in range(dimensions))
    channels_last = bool(rng.integers(2))
    is_depthwise = rng.integers(3) == 0
    if is_depthwise:
        channels, groups, filters = 1, int(rng.choice([1, 3, 16, 17, 40, 70, 130])), int(rng.choice([1, 1, 2, 3]))
    else:
        channels, groups, filters = (
            int(rng.choice(some)) for some in ((1, 2, 3, 5, 16, 20), (1, 1, 2, 3), (1, 2, 5, 16, 17, 33))
        )
    integer = tuple(role for role in (*ZERO_POINTS, "integer_bias") if rng.integers(2))
    choices = [((), np.int32)] * 2
    choices += [(DEQUANTIZE[: rng.integers(2, 4)], dtype) for dtype in FLOATS[:1]]
    choices += [(REQUANTIZE[: rng.integers(1, 3)], dtype) for dtype in BYTES]
    choices += [(RESCALE[: rng.integers(3, 5)], dtype) for dtype in BYTES]
    scaling, dtype = choices[rng.integers(len(choices))]
    return call(
        rng,
        windows,
        channels,
        filters,
        (*integer, *scaling),
        batch=int(rng.integers(1, 4)),
        groups=groups,
        channels_last=channels_last,
        filters_last=channels_last and bool(rng.integers(2)),
        dtype=dtype,
    )


def every_layout() -> list[dict[str, bool]]:
    return [
        {"channels_last": last, "filters_last": filters}
        for last, filters in itertools.product((False, True), repeat=2)
        if last or not filters
    ]
