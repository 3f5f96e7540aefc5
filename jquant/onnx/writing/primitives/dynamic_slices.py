"""Parts of arrays that begin at a computed index, which is moved into bounds."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jquant.onnx.writing import walk
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.indices import IN_BOUNDS, clamped
from jquant.onnx.writing.steps import cast, computed
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Size, Tensor, is_one, known, size_difference, sizes_equal


@primitive("dynamic_slice")
def _dynamic_slice(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    """Slice with computed starts; Gather for one index along one dimension."""
    (x, *starts), sizes = operands, equation.params["slice_sizes"]
    moved = [d for d in range(x.ndim) if not sizes_equal(sizes[d], x.shape[d])]
    if not moved:
        return x
    begin = _starts(builder, x.shape, sizes, starts, moved)
    type = equation.outvars[0].aval
    if len(moved) == 1 and is_one(sizes[moved[0]]):
        return computed(builder, "Gather", [x, begin], type, since=13, axis=moved[0], label="part")
    lengths = builder.shape([sizes[d] for d in moved])
    if begin.known is not None and lengths.known is not None:
        end = known(begin.known + lengths.known)
    else:
        end = builder.node("Add", [begin, lengths], begin.type, since=14, label="end")
    axes = known(np.array(moved, np.int64))
    return computed(builder, "Slice", [x, begin, end, axes], type, since=13, label="part")


def _starts(
    builder: Builder, shape: Sequence[Size], sizes: Sequence[Size], starts: Sequence[Tensor], moved: Sequence[int]
) -> Tensor:
    """Where a part begins along these dimensions, so that it is in bounds: int64."""

    def begin(*starts: jax.Array) -> jax.Array:
        columns = [lax.convert_element_type(lax.reshape(start, (1,)), np.int32) for start in starts]
        return clamped(lax.concatenate(columns, 0), [size_difference(shape[d], sizes[d]) for d in moved])

    return cast(builder, walk.traced(builder, begin, *(starts[d] for d in moved)), np.int64)


@primitive("dynamic_update_slice")
def _dynamic_update_slice(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    """ScatterND: of a cache, only what is new is written, and no part is cut out and joined again."""
    x, update, *_ = operands
    moved = [d for d in range(x.ndim) if not sizes_equal(update.shape[d], x.shape[d])]
    if not moved:
        return update

    def updated(x: jax.Array, update: jax.Array, *starts: jax.Array) -> jax.Array:
        columns = [lax.convert_element_type(lax.reshape(starts[d], (1,)), np.int32) for d in moved]
        indices = clamped(lax.concatenate(columns, 0), [size_difference(x.shape[d], update.shape[d]) for d in moved])
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(x.ndim)),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=tuple(moved),
        )
        return lax.scatter(x, indices, update, numbers, mode=IN_BOUNDS)

    return walk.traced(builder, updated, *operands)
