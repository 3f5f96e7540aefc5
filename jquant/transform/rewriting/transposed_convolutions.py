"""Transposed convolutions, whose input is dilated, as convolutions whose input is not.

Between the elements of an input that is dilated by L lie L - 1 zeros, so that a window meets only every L-th element of its
filter: which ones depends on where it lies, modulo L. So each filter becomes L shorter ones, one for each of these phases,
and the results of the phases, side by side, are those of the windows in order. The sums are those of the same products, less
the products with zeros, and as integers, they are equal.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.lowering.symbolic_sizes import joined


class _Axis(NamedTuple):
    """A spatial dimension.

    Attributes:
      dilation: the distance between the elements of the input, which has zeros between them.
      phases: the number of filters that one becomes; 1 if it stays as it is.
      taps: the elements of one of these.
      padding: that of the convolution.
      edges: what is added to the input itself before: elements before, after and between its own.
      skipped: the results before that of the first window.
      excess: how many windows there are beyond `phases` for each element of the input but one.
    """

    dilation: int
    phases: int
    taps: int
    padding: tuple[int, int]
    edges: tuple[int, int, int]
    skipped: int
    excess: int


def _axis(size: int, stride: int, dilation: int, filter_dilation: int, low: int, high: int) -> _Axis:
    phases, taps, skipped, inserted, excess = 1, size, 0, dilation - 1, 0
    if dilation > 1 and stride == 1 and filter_dilation == 1:
        phases, taps, inserted = dilation, -(-size // dilation), 0
        skipped = phases - 1 - low % phases
        excess = low + high - size + 2
        last = (excess - 1 + skipped) // phases
        low = low // phases
        high = last - low + taps - 1
    padding, edges = (low, high), (0, 0, inserted)
    if inserted or low < 0 or high < 0:  # which `convolution_integer_to_float` does not take
        padding, edges = (0, 0), (low, high, inserted)
    return _Axis(dilation, phases, taps, padding, edges, skipped, excess)


@dataclasses.dataclass(frozen=True)
class Undilated:
    """A convolution as one of another input and other filters, which has the same sums.

    Where windows have a stride, or filters a dilation, besides that of the input, and where padding is negative, the input
    is padded, and dilated, by its zero point instead.
    """

    dimensions: lax.ConvDimensionNumbers
    groups: int
    axes: tuple[_Axis, ...]

    @classmethod
    def of(cls, parameters: Mapping[str, Any], filter_shape: Sequence[int]) -> "Undilated":
        """Of the parameters of `jax.lax.conv_general_dilated_p`."""
        dimensions = parameters["dimension_numbers"]
        sizes = (filter_shape[dimension] for dimension in dimensions.rhs_spec[2:])
        names = "window_strides", "lhs_dilation", "rhs_dilation"
        described = zip(sizes, *(parameters[name] for name in names), parameters["padding"], strict=True)
        axes = tuple(_axis(*map(int, numbers), *map(int, padding)) for *numbers, padding in described)
        return cls(dimensions, parameters["feature_group_count"], axes)

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        return tuple(axis.padding for axis in self.axes)

    @property
    def _phases(self) -> list[int]:
        return [axis.phases for axis in self.axes]

    @property
    def _has_phases(self) -> bool:
        return any(phases > 1 for phases in self._phases)

    def input(self, values: jax.Array, zero_point: jax.Array | None) -> jax.Array:
        """The integers of the input, padded and dilated where the convolution is not."""
        if not any(any(axis.edges) for axis in self.axes):
            return values
        edges, first, after = [(0, 0, 0)] * values.ndim, [0] * values.ndim, [0] * values.ndim
        for dimension, axis in zip(self.dimensions.lhs_spec[2:], self.axes, strict=True):
            low, high, inserted = axis.edges
            edges[dimension] = max(low, 0), max(high, 0), inserted
            first[dimension], after[dimension] = max(-low, 0), max(-high, 0)
        edge = np.zeros((), values.dtype) if zero_point is None else zero_point.reshape(())
        values = lax.pad(values, edge, edges) if any(map(any, edges)) else values
        # Cropped by a slice, for the evaluator of the onnx package does not pad by negative numbers.
        limits = [size - number for size, number in zip(values.shape, after, strict=True)]
        return lax.slice(values, first, limits) if any(first) or any(after) else values

    def filter(self, filter: jax.Array) -> jax.Array:
        """The filters of all phases, those that come from one filter one after another."""
        if not self._has_phases:
            return filter
        filters, _, *space = self.dimensions.rhs_spec
        edges, parts = [(0, 0)] * filter.ndim, {}
        for dimension, axis in zip(space, self.axes, strict=True):
            edges[dimension] = 0, axis.taps * axis.phases - filter.shape[dimension]
            parts[dimension] = axis.taps, axis.phases
        divided, places = _divided(jnp.pad(filter, edges), parts)
        phases = [places[dimension].pop() for dimension in space]
        places[filters] += phases
        # The first windows after an element of the input have it under the last element that their filters may begin with.
        return _joined(jnp.flip(divided, phases), places)

    def by_filter(self, x: jax.Array) -> jax.Array:
        """One value, or one for each filter, for the filters of all phases."""
        if not self._has_phases or not x.ndim:
            return x
        return jnp.broadcast_to(x[:, None], (x.size, math.prod(self._phases))).reshape(-1)

    def output(self, output: jax.Array, shape: Sequence[int]) -> jax.Array:
        """The results of all phases in their order, for an input of this shape."""
        if not self._has_phases:
            return output
        _, channels, *space = self.dimensions.out_spec
        filters = output.shape[channels] // math.prod(self._phases)
        divided, places = _divided(output, {channels: (filters, *self._phases)})
        for axis, phase in zip(space, places[channels][1:], strict=True):
            places[axis].append(phase)
        del places[channels][1:]
        output = _joined(divided, places)
        for dimension, source, axis in zip(space, self.dimensions.lhs_spec[2:], self.axes, strict=True):
            if axis.phases > 1:
                count = (shape[source] - 1) * axis.phases + axis.excess
                output = lax.slice_in_dim(output, axis.skipped, axis.skipped + count, axis=dimension)
        return output


# Dimensions are divided or joined one reshape at a time, so that JAX can follow them over explicit axes of a mesh.


def _divided(x: jax.Array, parts: Mapping[int, Sequence[int]]) -> tuple[jax.Array, list[list[int]]]:
    """`x` with some of its dimensions divided into parts, and the dimensions that each of its own becomes."""
    places, first = [], 0
    for dimension in range(x.ndim):
        sizes = parts.get(dimension, x.shape[first : first + 1])
        if len(sizes) > 1:
            x = x.reshape(*x.shape[:first], *sizes, *x.shape[first + 1 :])
        places.append([*range(first, first + len(sizes))])
        first += len(sizes)
    return x, places


def _joined(x: jax.Array, places: Sequence[Sequence[int]]) -> jax.Array:
    """An array each of whose dimensions is made of some of `x`."""
    x = x.transpose([axis for axes in places for axis in axes])
    for dimension, axes in enumerate(places):
        if len(axes) > 1:
            rest = dimension + len(axes)
            x = x.reshape(*x.shape[:dimension], joined(x.shape[dimension:rest]), *x.shape[rest:])
    return x
