"""Sums, products and extremes of all elements up to each one."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jquant.errors import ModelError
from jquant.onnx.writing import walk
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.primitives.reductions import MONOIDS
from jquant.onnx.writing.steps import cast, computed, joined, sliced
from jquant.onnx.writing.table import PRIMITIVES, primitive
from jquant.onnx.writing.tensor import Tensor, known

_Join = Callable[[Builder, Tensor, Tensor], Tensor]


@primitive("cumsum")
def _sums(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    (x,), axis = operands, known(np.array(equation.params["axis"], np.int64))
    reverse = 1 if equation.params["reverse"] else None
    return computed(builder, "CumSum", [x, axis], x.type, since=14, reverse=reverse)


def _doubled(builder: Builder, equation: Any, operands: list[Tensor], join: _Join) -> Tensor:
    """Each element is joined with the one before it, the result with the one 2 before it, then 4, and so on."""
    (x,), axis, reverse = operands, equation.params["axis"], equation.params["reverse"]
    size = x.shape[axis]
    if not isinstance(size, int):
        raise ModelError("is not written along a dimension whose size is open")

    def part(start: int, limit: int) -> Tensor:
        starts, limits = [0] * x.ndim, list(x.shape)
        starts[axis], limits[axis] = start, limit
        return sliced(builder, x, starts, limits, [1] * x.ndim)

    distance = 1
    while distance < size:
        both = join(builder, part(0, size - distance), part(distance, size))
        parts = [both, part(size - distance, size)] if reverse else [part(0, distance), both]
        x = joined(builder, parts, axis)
        distance *= 2
    return x


def _logsumexp(builder: Builder, a: Tensor, b: Tensor) -> Tensor:
    wide = [cast(builder, operand, np.float32) for operand in (a, b)]
    return cast(builder, walk.traced(builder, jnp.logaddexp, *wide), a.dtype)


def _register() -> None:
    joins: dict[str, _Join] = {
        "cumprod": MONOIDS["mul"].joined,
        "cummax": MONOIDS["max"].joined,
        "cummin": MONOIDS["min"].joined,
        "cumlogsumexp": _logsumexp,
    }
    for name, join in joins.items():
        PRIMITIVES[name] = functools.partial(_doubled, join=join)


_register()
