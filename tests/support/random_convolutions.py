"""Convolutions of random sizes, with their arrays, and their results by jquant's reference."""

from typing import NamedTuple

import jax
import numpy as np
from jax import lax
from support.geometries import reordered

from jquant.cases import samples
from jquant.formulas.convolution_geometry import Geometry
from jquant.formulas.windows import Windows
from jquant.reference import convolutions as reference

FLOAT32 = np.dtype(np.float32)
BYTES = np.dtype(np.uint8), np.dtype(np.int8)
SPACE = "HWD"
DEVIATION = 74  # the standard deviation of uniform 8-bit integers
# For each number of spatial dimensions, limits for the sizes of windows and for what is left beside one window.
LIMITS = {1: (9, 40), 2: (4, 9), 3: (3, 4)}


class Convolution(NamedTuple):
    """A convolution, with its arrays in the layouts NCHW and OIHW, or those of other ranks.

    Attributes:
      x, x_zero_point, w, w_zero_point: integers; zero points may be None.
      x_scale, w_scale, y_scale, y_zero_point, integer_bias, float_bias: of what may follow; biases may be None.
      layout: that in which a call has the arrays.
    """

    x: np.ndarray
    x_scale: np.ndarray
    x_zero_point: np.ndarray | None
    w: np.ndarray
    w_scale: np.ndarray
    w_zero_point: np.ndarray | None
    y_scale: np.ndarray
    y_zero_point: np.ndarray
    integer_bias: np.ndarray | None
    float_bias: np.ndarray | None
    groups: int
    windows: Windows
    layout: tuple[str, str, str]

    @property
    def space(self) -> str:
        return SPACE[: self.x.ndim - 2]

    @property
    def is_product(self) -> bool:
        """Whether the window is the whole image, so that each image is a row of a product."""
        return self.groups == 1 and self.windows.sizes == self.x.shape[2:] and not any(map(any, self.windows.padding))

    @property
    def geometry(self) -> Geometry:
        x, w = self.arranged()
        return Geometry(lax.conv_dimension_numbers(x.shape, w.shape, self.layout), self.groups, self.windows)

    def arranged(self) -> tuple[np.ndarray, np.ndarray]:
        """`x` and `w` in the layout."""
        return reordered(self.x, f"NC{self.space}", self.layout[0]), reordered(self.w, f"OI{self.space}", self.layout[1])

    def restored(self, y: jax.Array) -> jax.Array:
        """A result with its dimensions as NCHW has them."""
        return reordered(y, self.layout[2], f"NC{self.space}")

    def expected(self, dtype: np.dtype) -> np.ndarray:
        """The result, as NCHW: int32, dequantized to a float, or requantized to int8 or uint8."""
        options = self.windows._asdict()
        padding, sizes = options.pop("padding"), options.pop("sizes")
        assert sizes == self.w.shape[2:]
        # The reference knows no negative padding.
        crop = (
            slice(max(0, -low), size - max(0, -high)) for size, (low, high) in zip(self.x.shape[2:], padding, strict=True)
        )
        x = self.x[:, :, *crop]
        options |= {"groups": self.groups, "padding": tuple((max(0, low), max(0, high)) for low, high in padding)}
        of_x, of_w = (0 if point is None else point for point in (self.x_zero_point, self.w_zero_point))
        if dtype == np.int32:
            return reference.convolution_integer(x, self.w, of_x, of_w, **options)
        operands = x, self.x_scale, of_x, self.w, self.w_scale, of_w
        if dtype not in BYTES:
            return reference.convolution_integer_to_float(*operands, self.float_bias, dtype=dtype, **options)
        operands += self.y_scale, self.y_zero_point.astype(dtype), self.integer_bias
        return reference.quantized_linear_convolution(*operands, dtype=dtype, **options)

    def describe(self) -> str:
        """What reproduces the geometry, for a failure."""
        points = (None if point is None else point.shape for point in (self.x_zero_point, self.w_zero_point))
        types = f"{self.x.dtype}{self.x.shape} * {self.w.dtype}{self.w.shape}"
        return f"{types}, groups {self.groups}, {self.windows}, {self.layout}, zero points {tuple(points)}"


def draw(rng: np.random.Generator, rank: int, *, negative_padding: bool = True) -> Convolution:
    """A convolution over `rank` spatial dimensions."""
    groups, channels, filters = _channels(rng)
    windows, space = _windows(rng, rank, negative_padding)
    x = _integers(rng, (int(rng.integers(1, 4)), groups * channels, *space))
    w = _integers(rng, (groups * filters, channels, *windows.sizes))
    by_filter = [(), (groups * filters,)]
    w_scale = samples.small_scales(rng, *by_filter[rng.integers(2)])
    x_scale = samples.small_scales(rng)
    spread = DEVIATION**2 * np.sqrt(w[0].size) * x_scale * w_scale.mean()
    integer_bias = rng.integers(-(10**5), 10**5, groups * filters, np.int32)
    float_bias = (rng.normal(size=by_filter[rng.integers(2)]) * spread).astype(FLOAT32)
    space_names = SPACE[:rank]
    layouts = (f"NC{space_names}", f"N{space_names}C")
    filter_layouts = (f"OI{space_names}", f"{space_names}IO", f"O{space_names}I")
    return Convolution(
        x=x,
        x_scale=x_scale,
        x_zero_point=samples.integers(rng, x.dtype) if rng.random() < 0.7 else None,
        w=w,
        w_scale=w_scale,
        w_zero_point=samples.integers(rng, w.dtype, *by_filter[rng.integers(2)]) if rng.random() < 0.7 else None,
        y_scale=np.float32(spread / rng.choice([30, 300])),
        y_zero_point=rng.integers(0, 128, (), np.int8),
        integer_bias=integer_bias if rng.random() < 0.5 else None,
        float_bias=float_bias if rng.random() < 0.5 else None,
        groups=groups,
        windows=windows,
        layout=tuple(str(rng.choice(names)) for names in (layouts, filter_layouts, layouts)),
    )


def _channels(rng: np.random.Generator) -> tuple[int, int, int]:
    """The number of groups, and of the channels and the filters of each."""
    kind = rng.choice(["one group", "groups", "depthwise"], p=[0.5, 0.2, 0.3])
    if kind == "one group":
        return 1, int(rng.choice([1, 2, 3, 4, 5, 8, 16, 17, 33, 64, 70])), int(rng.choice([1, 2, 3, 5, 8, 16, 17, 33, 70]))
    if kind == "groups":
        return int(rng.integers(2, 5)), int(rng.integers(2, 20)), int(rng.integers(1, 20))
    return int(rng.choice([2, 3, 4, 7, 8, 16, 17, 31, 32, 40, 64, 65])), 1, int(rng.integers(1, 4))


def _windows(rng: np.random.Generator, rank: int, negative_padding: bool) -> tuple[Windows, tuple[int, ...]]:
    """Windows, and the sizes of an image into which at least one fits."""
    longest, most = LIMITS[rank]
    sizes, strides, dilations, padding, space = [], [], [], [], []
    for _ in range(rank):
        size, stride, dilation = (int(rng.integers(1, limit + 1)) for limit in (longest, 3, 3))
        dilation = 1 if rng.random() < 0.5 else dilation
        low, high = map(int, rng.integers(-2 if negative_padding else 0, 4, 2) if rng.random() < 0.6 else (0, 0))
        sizes.append(size)
        strides.append(stride)
        dilations.append(dilation)
        padding.append((low, high))
        extent = (size - 1) * dilation + 1
        fewest = 1 + max(0, -low) + max(0, -high)
        space.append(max(fewest, extent - low - high + int(rng.integers(0, most))))
    return Windows(tuple(sizes), tuple(strides), tuple(dilations), tuple(padding)), tuple(space)


def _integers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """int8 or uint8: all integers, or none but the two extreme ones, whose products are the largest."""
    dtype = BYTES[rng.integers(2)]
    if rng.random() < 0.7:
        return samples.integers(rng, dtype, *shape)
    limits = np.iinfo(dtype)
    return rng.choice(np.array([limits.min, limits.max], dtype), shape)
