"""Steps of formulas as single nodes."""

from typing import Any

import numpy as np

from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.formulas import affine
from jquant.onnx.writing.steps import broadcast, cast, elementwise
from jquant.onnx.writing.table import writer
from jquant.onnx.writing.tensor import Tensor, all_known, known, sizes_equal

_ONE = known(np.float32(1))


@writer("rounding.nearest_integer", node="QuantizeLinear", since=10)
def _nearest_integer(builder: Builder, types: Any, x: Tensor, zero_point: Tensor | None, dtype: Any) -> Tensor | None:
    return _quantized(builder, types, x, _ONE, zero_point, dtype)


@writer("rounding.saturated", node="QuantizeLinear", since=10)
def _saturated(builder: Builder, types: Any, x: Tensor, dtype: Any) -> Tensor | None:
    return _quantized(builder, types, x, _ONE, None, dtype)


@writer("affine.quantize", node="QuantizeLinear", since=10)
def _affine(builder: Builder, types: Any, x: Tensor, output: Any, dtype: Any) -> Tensor | None:
    return _quantized(builder, types, x, output.scale, output.zero_point, dtype)


def _quantized(builder: Builder, types: Any, x: Tensor, scale: Any, zero_point: Any, dtype: Any) -> Tensor | None:
    (type,) = types
    if all_known(x, scale, zero_point) or not sizes_equal(type.shape, x.shape):
        return None
    return affine.quantize(builder, x, affine.parameters(builder, x.shape, scale, zero_point), dtype)


@writer("affine.dequantize", node="DequantizeLinear", since=10)
def _dequantized(builder: Builder, _: Any, x: Any) -> Tensor | None:
    """In the exact form, the steps: onnxruntime merges this node with those around it."""
    if builder.shared.form == "exact" or all_known(x):
        return None
    return affine.dequantize(builder, x.values, affine.parameters(builder, x.values.shape, x.scale, x.zero_point))


@writer("exact.integer_difference", node="Sub", since=7)
def _integer_difference(builder: Builder, _: Any, a: Tensor, b: Tensor) -> Tensor | None:
    """In float32, where the integers and their difference are exact."""
    if a.dtype.itemsize > 2:
        return None
    return elementwise(builder, "Sub", cast(builder, a, np.float32), cast(builder, b, np.float32))


@writer("lookup.look_up", node="Gather", since=1)
def _looked_up(builder: Builder, types: Any, table: Tensor, index: Tensor) -> Tensor | None:
    """The bits of an int8 index are a number that is not negative."""
    (type,) = types
    if all_known(table, index):
        return None
    if index.dtype == np.int8:
        index = cast(builder, index, np.uint8)
    numbers = cast(builder, index, np.int32)
    return builder.node("Gather", [table, numbers], type, since=13, axis=0, label="looked_up")


@writer("lookup.look_up_along", node="GatherElements", since=11)
def _looked_up_along(builder: Builder, types: Any, axis: int, tables: Tensor, index: Tensor) -> Tensor | None:
    """Other sizes of the tables than that of the axis may be 1."""
    (type,) = types
    if all_known(tables, index):
        return None
    sizes = [tables.shape[d] if d == axis else size for d, size in enumerate(index.shape)]
    tables, numbers = broadcast(builder, tables, sizes, range(tables.ndim)), cast(builder, index, np.int32)
    return builder.node("GatherElements", [tables, numbers], type, since=13, axis=axis, label="looked_up")


@writer("exact.quotient_of_uint32_max", node="Div", since=7)
def _quotient_of_uint32_max(builder: Builder, _: Any, d: Tensor) -> Tensor | None:
    """In float64: that this quotient is rounded twice changes nothing, as it has at most 49 bits next to a tie."""
    if d.is_known:
        return None
    numerator = known(np.broadcast_to(np.float64(2**32 - 1), (1,) * d.ndim))
    return cast(builder, elementwise(builder, "Div", numerator, cast(builder, d, np.float64)), np.float32)
