"""Windows that slide over the spatial dimensions of a tensor: what convolutions and pooling have in common."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import lax

from jquant.descriptor import require

Padding = str | Sequence[tuple[int, int]]


class Windows(NamedTuple):
    """Each field has an entry for each spatial dimension.

    Attributes:
      sizes: the elements of a window.
      strides: the steps from a window to the next.
      dilations: the steps from an element of a window to the next.
      padding: the elements before the first and after the last of the tensor.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    def counts(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """How many windows fit into a tensor of these `spatial` sizes, in each dimension."""
        return tuple(
            max(0, (size + low + high - (window - 1) * dilation - 1) // stride + 1)
            for size, window, stride, dilation, (low, high) in zip(spatial, *self, strict=True)
        )

    def elements(self, padded: jax.Array, first: int) -> Iterator[jax.Array]:
        """For each element of a window, in row-major order, its values in all windows.

        Args:
          padded: a tensor that has its padding.
          first: the first of its spatial dimensions.
        """
        unpadded = self._replace(padding=((0, 0),) * len(self.sizes))
        dimensions = range(first, first + len(self.sizes))
        counts = unpadded.counts([padded.shape[dimension] for dimension in dimensions])
        for element in itertools.product(*map(range, self.sizes)):
            start, limit, step = [0] * padded.ndim, list(padded.shape), [1] * padded.ndim
            for dimension, index, count, stride, dilation in zip(
                dimensions, element, counts, self.strides, self.dilations, strict=True
            ):
                first_value = index * dilation if count else 0  # where no window fits, an element may lie outside
                start[dimension], step[dimension] = first_value, stride
                limit[dimension] = first_value + max(0, (count - 1) * stride + 1)
            yield lax.slice(padded, start, limit, step)


def windows(
    operator: str,
    spatial: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Windows:
    """The windows that a caller describes as `jax.lax` takes them, or an error.

    Args:
      operator: whom errors name.
      spatial: the sizes of the tensor's spatial dimensions.
      sizes: the sizes of a window.
      strides: None means 1 everywhere.
      dilations: None means 1 everywhere.
      padding: ``"VALID"``, ``"SAME"``, ``"SAME_LOWER"``, or a pair (before, after) for each dimension.
    """
    rank = len(spatial)
    sizes = _positive(operator, "sizes of a window", sizes, rank)
    strides = _positive(operator, "strides", (1,) * rank if strides is None else strides, rank)
    dilations = _positive(operator, "dilations", (1,) * rank if dilations is None else dilations, rank)
    if isinstance(padding, str):
        names = "VALID", "SAME", "SAME_LOWER"
        require(padding in names, f"{operator}: padding is {padding!r}; names are {', '.join(names)}")
        reach = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]
        pairs = lax.padtype_to_pads(spatial, reach, strides, padding)
    else:
        pairs = tuple(padding) if _is_sequence(padding) and all(map(_is_sequence, padding)) else ()
    message = f"{operator}: padding is {padding}; it must be a name, or {rank} pairs of numbers that are not negative"
    require(len(pairs) == rank and all(len(pair) == 2 and min(pair) >= 0 for pair in pairs), message)
    return Windows(sizes, strides, dilations, tuple((low, high) for low, high in pairs))


def _positive(operator: str, name: str, values: Sequence[int], rank: int) -> tuple[int, ...]:
    message = f"{operator}: the {name} are {values}; they must be {rank} positive numbers, one for each dimension"
    require(_is_sequence(values) and len(values) == rank and all(value > 0 for value in values), message)
    return tuple(values)


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence | np.ndarray)
