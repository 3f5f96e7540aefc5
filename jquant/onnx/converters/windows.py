"""Windows that move over spatial dimensions, as in convolutions and pooling."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax import lax

from jquant.onnx.errors import ModelError

_AUTOMATIC = {"SAME_UPPER": "SAME", "SAME_LOWER": "SAME_LOWER", "VALID": "VALID"}


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
        auto_pad: str,
        ceil_mode: int = 0,
    ) -> "Window":
        """A window from ONNX's attributes, for a tensor of shape (batch, channels, *spatial)."""
        rank = len(kernel)
        if len(shape) != rank + 2:
            raise ModelError(f"a window of {rank} dimensions does not fit a tensor of {len(shape)}")
        strides, dilations = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
        spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
        if auto_pad in _AUTOMATIC:
            found = lax.padtype_to_pads(shape[2:], spans, strides, _AUTOMATIC[auto_pad])
        else:
            pads = pads or (0,) * 2 * rank
            found = list(zip(pads[:rank], pads[rank:], strict=True))
        ceiling = [0] * rank
        if ceil_mode:
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
