"""Changes of shape, and parts of arrays at known indices."""

from typing import Any

import jax
import numpy as np

from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import (
    broadcast,
    cast,
    computed,
    joined,
    padded,
    reshape,
    reversed_along,
    sliced,
    transpose,
)
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Tensor, known


@primitive("reshape", "squeeze")
def _reshaped(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    """The elements in their order; `jax.lax.reshape` may ask for another order of the dimensions first."""
    (x,) = operands
    if equation.primitive.name == "reshape" and equation.params["dimensions"] is not None:
        x = transpose(builder, x, equation.params["dimensions"])
    return reshape(builder, x, equation.outvars[0].aval.shape)


@primitive("transpose")
def _transposed(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    return transpose(builder, operands[0], equation.params["permutation"])


@primitive("broadcast_in_dim")
def _broadcast(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    return broadcast(builder, operands[0], equation.outvars[0].aval.shape, equation.params["broadcast_dimensions"])


@primitive("concatenate")
def _joined(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    return joined(builder, operands, equation.params["dimension"])


@primitive("stack")
def _stacked(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    axis = equation.params["axis"]
    parts = [reshape(builder, x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in operands]
    return joined(builder, parts, axis)


@primitive("unstack")
def _unstacked(builder: Builder, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    (x,), axis = operands, equation.params["axis"]
    parts = _parts(builder, x, [1] * len(equation.outvars), axis)
    return [reshape(builder, part, (*x.shape[:axis], *x.shape[axis + 1 :])) for part in parts]


@primitive("split")
def _split(builder: Builder, equation: Any, operands: list[Tensor]) -> list[Tensor]:
    return _parts(builder, operands[0], [int(size) for size in equation.params["sizes"]], equation.params["axis"])


def _parts(builder: Builder, x: Tensor, sizes: list[int], axis: int) -> list[Tensor]:
    if len(sizes) == 1:
        return [x]
    types = [jax.ShapeDtypeStruct((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype) for size in sizes]
    return computed(builder, "Split", [x, known(np.array(sizes, np.int64))], types, since=13, axis=axis, label="part")


@primitive("slice")
def _sliced(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    (x,), parameters = operands, equation.params
    strides = parameters["strides"] or (1,) * x.ndim
    return sliced(builder, x, parameters["start_indices"], parameters["limit_indices"], strides)


@primitive("rev")
def _reversed(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    return reversed_along(builder, operands[0], [int(dimension) for dimension in equation.params["dimensions"]])


@primitive("pad")
def _padded(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    x, number = operands
    config = equation.params["padding_config"]
    x = spread(builder, x, number, [int(interior) + 1 for _, _, interior in config])
    return padded(builder, x, number, [(_size_of(low), _size_of(high)) for low, high, _ in config])


def _size_of(number: Any) -> Any:
    """A size, which may be open, without NumPy's types."""
    return int(number) if isinstance(number, np.integer) else number


def spread(builder: Builder, x: Tensor, number: Tensor, distances: list[int]) -> Tensor:
    """`x` with a number between its elements, which are then so far apart in each dimension."""
    for dimension, distance in enumerate(distances):
        if distance == 1:
            continue
        before, size, after = x.shape[:dimension], x.shape[dimension], x.shape[dimension + 1 :]
        column = reshape(builder, x, (*before, size, 1, *after))
        padding = [(0, 0)] * column.ndim
        padding[dimension + 1] = (0, distance - 1)
        x = reshape(builder, padded(builder, column, number, padding), (*before, size * distance, *after))
        # By Slice: ONNX's own evaluator takes no negative numbers for Pad.
        limits = [*before, x.shape[dimension] + 1 - distance, *after]
        x = sliced(builder, x, [0] * x.ndim, limits, [1] * x.ndim)
    return x


@primitive("tile")
def _tiled(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    (x,), counts = operands, equation.params["reps"]
    type = equation.outvars[0].aval
    x = reshape(builder, x, (1,) * (len(counts) - x.ndim) + x.shape)
    return computed(builder, "Tile", [x, builder.shape(counts)], type, since=13, label="repeated")


@primitive("iota")
def _counted(builder: Builder, equation: Any, _: list[Tensor]) -> Tensor:
    """Reached for open sizes alone, as the others are known."""
    type, dimension = equation.outvars[0].aval, equation.params["dimension"]
    size = type.shape[dimension]
    zero, one = (known(np.array(number, np.int64)) for number in (0, 1))
    count = jax.ShapeDtypeStruct((size,), np.int64)
    numbers = builder.node("Range", [zero, reshape(builder, builder.size(size), ()), one], count, since=11, label="numbers")
    return broadcast(builder, cast(builder, numbers, type.dtype), type.shape, (dimension,))


@primitive("dim_as_value")
def _size(builder: Builder, equation: Any, _: list[Tensor]) -> Tensor:
    aval = equation.outvars[0].aval
    return reshape(builder, cast(builder, builder.size(equation.params["dim"]), np.dtype(aval.dtype)), ())
