"""Sorting, and the largest elements."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast, computed, elementwise, is_float, like, where
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Tensor


@primitive("sort")
def _sorted(builder: Builder, equation: Any, operands: list[Tensor]) -> Sequence[Tensor]:
    """Sorted by the last key first: what is equal keeps its order."""
    dimension, keys = equation.params["dimension"], equation.params["num_keys"]
    values = operands
    for number in reversed(range(keys)):
        key = _ordered(builder, values[number])
        if not is_float(values[number].dtype) and len(values) == 1:
            return [_extremes(builder, key, key.shape[dimension], dimension, largest=False)[0]]
        indices = _extremes(builder, key, key.shape[dimension], dimension, largest=False)[1]
        values = [
            computed(builder, "GatherElements", [value, indices], value.type, since=13, axis=dimension, label="sorted")
            for value in values
        ]
    return values


def _ordered(builder: Builder, key: Tensor) -> Tensor:
    """Numbers in the same order, in which NaN comes last: greater than infinity, in a wider type."""
    if not is_float(key.dtype):
        return key
    wide = cast(builder, key, np.float64)
    below = elementwise(builder, "Min", wide, like(wide, 1e300))
    single = cast(builder, key, np.float32)
    return where(builder, elementwise(builder, "IsNaN", single, dtype=np.bool_), like(wide, np.inf), below)


def _extremes(builder: Builder, x: Tensor, count: Any, dimension: int, *, largest: bool) -> list[Tensor]:
    """The first elements in order, and their indices; of equal ones, the first comes first."""
    shape = (*x.shape[:dimension], count, *x.shape[dimension + 1 :])
    types = [jax.ShapeDtypeStruct(shape, dtype) for dtype in (x.dtype, np.int64)]
    is_first = None if largest else 0
    return computed(builder, "TopK", [x, builder.shape([count])], types, since=13, axis=dimension, largest=is_first)


@primitive("top_k")
def _largest(builder: Builder, equation: Any, operands: list[Tensor]) -> Sequence[Tensor]:
    """NaN has no certain index, where it comes first in JAX."""
    (x,), parameters = operands, equation.params
    values, indices = _extremes(builder, x, parameters["k"], parameters["axis"] % x.ndim, largest=True)
    return [values, cast(builder, indices, equation.outvars[1].aval.dtype)]
