"""Products of matrices in all dimensions."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast, computed, is_float, is_unsigned, like, reshape, transpose
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Size, Tensor


@primitive("dot_general")
def _product(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    """MatMul of matrices behind the dimensions of the batch; several dimensions of one kind become one, where they must."""
    type = equation.outvars[0].aval
    a, b = operands
    contracted, batched = equation.params["dimension_numbers"]
    a_free, b_free = (
        [d for d in range(x.ndim) if d not in (*contracted[side], *batched[side])] for side, x in enumerate((a, b))
    )
    batch, rows, columns = (
        tuple(x.shape[d] for d in dimensions) for x, dimensions in ((a, batched[0]), (a, a_free), (b, b_free))
    )
    count = math.prod(a.shape[d] for d in contracted[0])
    left = transpose(builder, a, (*batched[0], *a_free, *contracted[0]))
    right = transpose(builder, b, (*batched[1], *contracted[1], *b_free))
    # Without a batch, MatMul takes any number of rows' dimensions, none as well, and columns of none or one.
    rows_as_they_are = len(rows) == 1 or not batch
    columns_as_they_are = len(columns) == 1 or (not batch and not columns)
    rows_of_node = rows if rows_as_they_are else (math.prod(rows),)
    columns_of_node = columns if columns_as_they_are else (math.prod(columns),)
    left = reshape(builder, left, (*batch, *rows_of_node, count))
    right = reshape(builder, right, (*batch, count, *columns_of_node))
    product = matmul(builder, left, right, (*batch, *rows_of_node, *columns_of_node), np.dtype(type.dtype))
    return reshape(builder, product, type.shape)


def matmul(builder: Builder, a: Tensor, b: Tensor, shape: Sequence[Size], dtype: np.dtype) -> Tensor:
    """The product in a type: integers wrap, narrow floats are summed in float32. Sums of nothing are 0."""
    if 0 in a.shape[-1:]:  # for which MatMulInteger leaves in its result what was in memory
        return like(Tensor(dtype, tuple(shape)), 0)
    if not is_float(dtype) and is_byte(a) and is_byte(b):
        type = jax.ShapeDtypeStruct(tuple(shape), np.int32)
        factors = [as_bytes(builder, x) for x in (a, b)]
        product = builder.node("MatMulInteger", factors, type, since=10, label="product")
    else:
        wide = np.dtype(np.float32) if is_float(dtype) and dtype.itemsize < 4 else dtype
        type = jax.ShapeDtypeStruct(tuple(shape), wide)
        product = computed(builder, "MatMul", [cast(builder, x, wide) for x in (a, b)], type, since=13, label="product")
    return cast(builder, product, dtype)


def as_bytes(builder: Builder, x: Tensor) -> Tensor:
    """Integers of a byte or less in a type that MatMulInteger and ConvInteger take."""
    return cast(builder, x, np.uint8 if is_unsigned(x.dtype) else np.int8)


def is_byte(x: Tensor) -> bool:
    return x.dtype.itemsize == 1 and not is_float(x.dtype) and x.dtype != np.bool_
