"""The windows of convolutions and pooling: ONNX's attributes `auto_pad`, `pads`, `strides`, `dilations` and `ceil_mode`."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.running.registry import AttributeGroup

_SAME = ("SAME_UPPER", "SAME_LOWER")


@dataclasses.dataclass(frozen=True)
class WindowAttributes(AttributeGroup):
    """The attributes of convolutions and pools that say where windows are."""

    auto_pad: str = "NOTSET"
    dilations: Sequence[int] | None = None
    pads: Sequence[Any] | None = None
    strides: Sequence[int] | None = None

    def spans(self, kernel: Sequence[int]) -> list[int]:
        """The extent of a window along each dimension, from its first to its last element."""
        return [(size - 1) * step + 1 for size, step in zip(kernel, self.dilations or (1,) * len(kernel), strict=True)]


@dataclasses.dataclass(frozen=True)
class ConvolutionAttributes(WindowAttributes):
    group: int = 1
    kernel_shape: Sequence[int] | None = None


_Attributes = TypeVar("_Attributes", bound=WindowAttributes)


def resolve_padding(x: Any, kernel: Sequence[int], attributes: _Attributes, first_axis: int = 2) -> tuple[Any, _Attributes]:
    """The input of a convolution, and its attributes, with the padding as numbers, or None if there is none.

    Where a stride is longer than the window, windows do not reach all elements. "SAME" then makes onnxruntime's padding
    negative: the first window begins inside the tensor, at a position that depends on the operator. The returned tensor is
    cropped accordingly, so that no number is negative.

    Args:
      first_axis: the first spatial dimension; 1 if the channels are last.
    """
    if attributes.auto_pad not in _SAME:
        return x, _with_explicit_padding(attributes)
    spans = attributes.spans(kernel)
    x, attributes, _ = _automatic_padding(x, spans, spans, attributes, first_axis, is_pool=False, is_average=False)
    return x, attributes


def resolve_pool_padding(
    x: Any, kernel: Sequence[int], attributes: WindowAttributes, is_average: bool = False
) -> tuple[Any, WindowAttributes, list[int]]:
    """As `resolve_padding`, and by how much the last window of each dimension extends beyond the padding.

    The padding of onnxruntime's pools does not depend on the dilations, so there may be fewer windows than ONNX specifies.
    """
    if attributes.auto_pad not in _SAME:
        return x, _with_explicit_padding(attributes), [0] * len(kernel)
    spans = attributes.spans(kernel)
    return _automatic_padding(x, kernel, spans, attributes, 2, is_pool=True, is_average=is_average)


def _with_explicit_padding(attributes: _Attributes) -> _Attributes:
    return _padded(attributes, None if attributes.auto_pad == "VALID" or not attributes.pads else list(attributes.pads))


def _padded(attributes: _Attributes, pads: Sequence[Any] | None) -> _Attributes:
    return dataclasses.replace(attributes, auto_pad="NOTSET", pads=pads)


def _automatic_padding(
    x: Any,
    extents: Sequence[int],
    spans: Sequence[int],
    attributes: _Attributes,
    first_axis: int,
    *,
    is_pool: bool,
    is_average: bool,
) -> tuple[Any, _Attributes, list[int]]:
    """The cropped tensor, its padding, and by how much the last windows extend beyond the padding.

    Args:
      extents: the window lengths from which the padding is computed.
      spans: the actual lengths of a window.
      is_average: whether to leave out elements that negative padding crops, even where a window reaches them.
    """
    if x.ndim != len(spans) + 2:
        raise ModelError(f"a window of {len(spans)} dimensions does not fit a tensor of {x.ndim}")
    pairs, overhang, crops = [], [], [(0, 0, 0)] * x.ndim
    for axis, (extent, span, stride) in enumerate(
        zip(extents, spans, attributes.strides or (1,) * len(spans), strict=True), first_axis
    ):
        size, missing = x.shape[axis], 0
        low, high = _same_padding(size, extent, stride, attributes.auto_pad, is_pool)
        if not jax.export.is_symbolic_dim(size):
            # Truncated as in C++, so that a last window may not fit.
            windows = int((size + low + high - span) / stride) + 1
            missing = max(0, (windows - 1) * stride + span - size - low - high)
            if not is_average and high < 0:
                kept = min(missing, -high)
                high, missing = high + kept, missing - kept
            crops[axis] = (min(0, low), min(0, high), 0)
        pairs.append((max(0, low), max(0, high)) if crops[axis] != (0, 0, 0) else (low, high))
        overhang.append(missing)
    if any(map(any, crops)):
        x = lax.pad(x, x.dtype.type(0), crops)
    return x, _padded(attributes, [*(low for low, _ in pairs), *(high for _, high in pairs)]), overhang


def _same_padding(size: Any, extent: int, stride: int, auto_pad: str, is_pool: bool) -> tuple[Any, Any]:
    """The padding of one dimension, for as many windows as there would be if each had one element."""
    is_open = jax.export.is_symbolic_dim(size)
    if stride <= extent + is_open:  # at most one element is left over after the windows, which is always the last one
        ((low, high),) = lax.padtype_to_pads([size], [extent], [stride], "SAME" if auto_pad == "SAME_UPPER" else auto_pad)
        return low, high
    if is_open:
        raise ModelError("where its windows begin depends on a size that is left open: fix it")
    needed = -(-size // stride) * stride - stride + extent - size
    if needed >= 0:
        low = (needed + (auto_pad == "SAME_LOWER")) // 2
        return low, needed - low
    doubled_start = -needed - (auto_pad == "SAME_LOWER") - (not is_pool)  # twice the index at which the first window begins
    low = -max(0, doubled_start // 2)
    return low, needed - low


@dataclasses.dataclass(frozen=True)
class Window:
    """For each spatial dimension: the size of the window, its stride, the dilation of its elements, and the padding.

    Attributes:
      ceiling: by how much the padding at the end of each dimension grows, so that an incomplete last window counts.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[Any, Any], ...]
    ceiling: tuple[int, ...]

    @classmethod
    def from_attributes(
        cls,
        shape: Sequence[Any],
        kernel: Sequence[int],
        attributes: WindowAttributes,
        *,
        ceil_mode: int = 0,
        overhang: Sequence[int] | None = None,
    ) -> "Window":
        """A window from ONNX's attributes, for a tensor of shape (batch, channels, *spatial).

        Args:
          attributes, overhang: the results of `resolve_padding` or `resolve_pool_padding`.
        """
        rank = len(kernel)
        if len(shape) != rank + 2:
            raise ModelError(f"a window of {rank} dimensions does not fit a tensor of {len(shape)}")
        strides, dilations = (tuple(each or (1,) * rank) for each in (attributes.strides, attributes.dilations))
        spans = attributes.spans(kernel)
        pads = attributes.pads or (0,) * 2 * rank
        pairs = tuple(zip(pads[:rank], pads[rank:], strict=True))
        ceiling = list(overhang or [0] * rank)
        if ceil_mode and not any(ceiling):
            ceiling = [_ceiling(*each) for each in zip(shape[2:], spans, strides, pairs, strict=True)]
        return cls(kernel=tuple(kernel), strides=strides, dilations=dilations, pads=pairs, ceiling=tuple(ceiling))

    @property
    def spans(self) -> tuple[int, ...]:
        """The extent of a window, from its first to its last element."""
        return tuple(WindowAttributes(dilations=self.dilations).spans(self.kernel))

    @property
    def is_point(self) -> bool:
        """Whether it is a single element with stride 1 and no padding."""
        return set(self.kernel + self.strides) == {1} and not any(map(any, self.padding))

    @property
    def padding(self) -> list[tuple[Any, Any]]:
        """The padding of all dimensions, batch and channels included."""
        grown = [(low, high + more) for (low, high), more in zip(self.pads, self.ceiling, strict=True)]
        return [(0, 0), (0, 0), *grown]

    def shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The number of windows along each spatial dimension."""
        return tuple(
            (size + low + high - span) // stride + 1
            for size, span, stride, (low, high) in zip(shape, self.spans, self.strides, self.padding[2:], strict=True)
        )


def _ceiling(size: int, span: int, stride: int, pads: tuple[int, int]) -> int:
    """The elements that a last window lacks, if it begins inside the tensor or in the padding before it; else 0."""
    low, high = pads
    remainder = (size + low + high - span) % stride
    if not remainder:
        return 0
    start = (size + low + high - span) // stride * stride + stride
    return stride - remainder if start < size + low else 0
