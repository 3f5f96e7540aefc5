"""Windows that move over spatial dimensions, as in convolutions and pooling."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from jquant.errors import ModelError

_SAME = ("SAME_UPPER", "SAME_LOWER")


def resolved(
    x: Any,
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    *,
    first: int = 2,
) -> tuple[Any, list[Any] | None]:
    """The input of a convolution, and the padding of its spatial dimensions in numbers, None if there is none.

    Where a stride is longer than the window, windows do not reach all elements. "SAME" then makes onnxruntime's padding
    negative: the first window begins inside the tensor, at a place that depends on the operator. So the tensor that is
    returned is cropped, and no number is negative.

    Args:
      first: the first spatial dimension; 1 if the channels are last.
    """
    if auto_pad not in _SAME:
        return x, None if auto_pad == "VALID" else list(pads) if pads else None
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations or (1,) * len(kernel), strict=True)]
    x, pairs, _ = _automatic(x, spans, spans, strides, auto_pad, first, is_pool=False, is_average=False)
    return x, [*(low for low, _ in pairs), *(high for _, high in pairs)]


def resolved_pool(
    x: Any,
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    *,
    is_average: bool = False,
) -> tuple[Any, list[Any] | None, list[int]]:
    """As `resolved`, and what of the last window lies behind the padding.

    In a pool of onnxruntime, padding does not depend on the dilations, so that there may be fewer windows than ONNX wants.
    """
    if auto_pad not in _SAME:
        return x, None if auto_pad == "VALID" else list(pads) if pads else None, [0] * len(kernel)
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations or (1,) * len(kernel), strict=True)]
    x, pairs, behind = _automatic(x, kernel, spans, strides, auto_pad, 2, is_pool=True, is_average=is_average)
    return x, [*(low for low, _ in pairs), *(high for _, high in pairs)], behind


def _automatic(
    x: Any,
    extents: Sequence[int],
    spans: Sequence[int],
    strides: Sequence[int] | None,
    auto_pad: str,
    first: int,
    is_pool: bool,
    is_average: bool,
) -> tuple[Any, list[tuple[Any, Any]], list[int]]:
    """The tensor, cropped; the padding; and what of the last windows lies behind it.

    Args:
      extents: the lengths of a window from which the padding is computed.
      spans: those that it has.
      is_average: whether elements that negative padding leaves out do not count where a window reaches them nevertheless.
    """
    if x.ndim != len(spans) + 2:
        raise ModelError(f"a window of {len(spans)} dimensions does not fit a tensor of {x.ndim}")
    pairs, behind, crops = [], [], [(0, 0, 0)] * x.ndim
    for axis, (extent, span, stride) in enumerate(zip(extents, spans, strides or (1,) * len(spans), strict=True), first):
        size, missing = x.shape[axis], 0
        low, high = _same(size, extent, stride, auto_pad, is_pool)
        if not jax.export.is_symbolic_dim(size):
            windows = (
                int((size + low + high - span) / stride) + 1
            )  # truncated, as in C++: there may be one that does not fit
            missing = max(0, (windows - 1) * stride + span - size - low - high)
            if not is_average and high < 0:
                kept = min(missing, -high)
                high, missing = high + kept, missing - kept
            crops[axis] = (min(0, low), min(0, high), 0)
        pairs.append((max(0, low), max(0, high)) if crops[axis] != (0, 0, 0) else (low, high))
        behind.append(missing)
    if any(map(any, crops)):
        x = lax.pad(x, x.dtype.type(0), crops)
    return x, pairs, behind


def _same(size: Any, extent: int, stride: int, auto_pad: str, is_pool: bool) -> tuple[Any, Any]:
    """The padding of one dimension, which gives as many windows as there would be if they had one element each."""
    is_open = jax.export.is_symbolic_dim(size)
    if stride <= extent + is_open:  # one element more is left over behind the windows
        ((low, high),) = lax.padtype_to_pads([size], [extent], [stride], "SAME" if auto_pad == "SAME_UPPER" else auto_pad)
        return low, high
    if is_open:
        raise ModelError("where its windows begin depends on a size that is left open: fix it")
    needed = -(-size // stride) * stride - stride + extent - size
    if needed >= 0:
        low = (needed + (auto_pad == "SAME_LOWER")) // 2
        return low, needed - low
    twice = -needed - (auto_pad == "SAME_LOWER") - (not is_pool)  # the place where the first window begins
    low = -max(0, twice // 2)
    return low, needed - low


@dataclasses.dataclass(frozen=True)
class Window:
    """For each spatial dimension: the size of the window, its stride, the dilation of its elements, and the padding.

    Attributes:
      ceiling: what the padding at the end of each dimension grows by, so that a last, incomplete window counts.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[Any, Any], ...]
    ceiling: tuple[int, ...]

    @classmethod
    def of(
        cls,
        shape: Sequence[Any],
        kernel: Sequence[int],
        strides: Sequence[int] | None,
        dilations: Sequence[int] | None,
        pads: Sequence[int] | None,
        ceil_mode: int = 0,
        behind: Sequence[int] | None = None,
    ) -> "Window":
        """A window from ONNX's attributes, for a tensor of shape (batch, channels, *spatial), as `resolved`."""
        rank = len(kernel)
        if len(shape) != rank + 2:
            raise ModelError(f"a window of {rank} dimensions does not fit a tensor of {len(shape)}")
        strides, dilations = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
        spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
        pads = pads or (0,) * 2 * rank
        found = list(zip(pads[:rank], pads[rank:], strict=True))
        ceiling = list(behind or [0] * rank)
        if ceil_mode and not any(ceiling):
            ceiling = [_rest(*each) for each in zip(shape[2:], spans, strides, found, strict=True)]
        return cls(tuple(kernel), strides, dilations, tuple(map(tuple, found)), tuple(ceiling))

    @property
    def spans(self) -> tuple[int, ...]:
        """The extent of a window, from its first to its last element."""
        return tuple((size - 1) * dilation + 1 for size, dilation in zip(self.kernel, self.dilations, strict=True))

    @property
    def is_point(self) -> bool:
        """Whether it is a single element with stride 1."""
        return set(self.kernel + self.strides) == {1} and not any(map(any, self.padding))

    @property
    def padding(self) -> list[tuple[Any, Any]]:
        """The padding of all dimensions, batch and channels included."""
        grown = [(low, high + more) for (low, high), more in zip(self.pads, self.ceiling, strict=True)]
        return [(0, 0), (0, 0), *grown]

    def shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """How many windows there are along each spatial dimension."""
        return tuple(
            (size + low + high - span) // stride + 1
            for size, span, stride, (low, high) in zip(shape, self.spans, self.strides, self.padding[2:], strict=True)
        )


def _rest(size: int, span: int, stride: int, pads: tuple[int, int]) -> int:
    """What is missing from a last window that begins inside the tensor or in the padding before it."""
    low, high = pads
    over = (size + low + high - span) % stride
    if not over:
        return 0
    starts = (size + low + high - span) // stride * stride + stride
    return stride - over if starts < size + low else 0
