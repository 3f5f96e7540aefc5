"""Products and convolutions of integers, corrected for zero points, and the steps that follow them.

onnxruntime's nodes take one zero point of A, and one or one for each column of B. Other zero points are corrected for by the
sums of rows and columns, exactly modulo 2**32.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jquant.formulas.convolution_geometry import Geometry
from jquant.kernels import epilogue as epilogues
from jquant.onnx.writing import walk, windows
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast, elementwise, like, reshape
from jquant.onnx.writing.tensor import Size, Tensor, is_one, is_static, known, sizes_equal

_INT8, _INT32, _FLOAT32 = np.dtype(np.int8), np.dtype(np.int32), np.dtype(np.float32)


def is_single(x: Tensor) -> bool:
    """Whether an array has one element."""
    return all(map(is_one, x.shape))


def is_row(x: Tensor) -> bool:
    """Whether an array has one element, or one for each column."""
    return all(map(is_one, x.shape[:-1]))


def unless_zero(zero_point: Tensor | None) -> Tensor | None:
    """A zero point; None if it is known to be 0."""
    is_zero = zero_point is not None and zero_point.known is not None and not zero_point.known.any()
    return None if is_zero else zero_point


def integer_product(
    builder: Builder, a: Tensor, b: Tensor, a_zero_point: Tensor | None, b_zero_point: Tensor | None
) -> Tensor:
    """``(a - a_zero_point) @ (b - b_zero_point)`` in int32, by MatMulInteger.

    Args:
      a, b: int8 or uint8, of shapes (..., M, K) and (..., K, N).
      a_zero_point: integers of any type, one element or of shape (..., M, 1); None for 0.
      b_zero_point: one element, or of shape (N,) or (..., 1, N); None for 0.
    """
    batch = lax.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    a_zero_point, b_zero_point = unless_zero(a_zero_point), unless_zero(b_zero_point)
    if 0 in (a.shape[-1], *shape):  # for which the kernels of onnxruntime fill nothing in
        return like(Tensor(_INT32, shape), 0)
    if builder.shared.form == "qdq" and a.dtype == np.int8 and b.dtype == np.uint8 and b.known is not None:
        # onnxruntime would fuse the node with those after it, for which it has no kernel of these types.
        b, b_zero_point = known((b.known ^ np.uint8(128)).view(np.int8), b.label), _less_128(builder, b_zero_point)
    if a.ndim >= b.ndim and all(map(is_one, b.shape[:-2])):
        b = reshape(builder, b, b.shape[-2:])
    a_point = a_zero_point if a_zero_point is not None and is_single(a_zero_point) else None
    b_point = b_zero_point if b_zero_point is not None and (is_single(b_zero_point) or _is_row_of(b_zero_point, b)) else None
    product = _multiplied(builder, a, b, a_point, b_point, shape)
    if a_zero_point is not None and a_point is None:
        sums = _column_sums(builder, b, b_point)
        product = elementwise(builder, "Sub", product, _times(builder, a_zero_point, sums))
    if b_zero_point is not None and b_point is None:
        sums = row_sums(builder, a, a_zero_point)
        product = elementwise(builder, "Sub", product, _times(builder, sums, b_zero_point))
    return product


def _less_128(builder: Builder, zero_point: Tensor | None) -> Tensor:
    """The zero point of unsigned weights whose sign bit is flipped."""
    if zero_point is None:
        return known(np.int32(-128))
    wide = cast(builder, zero_point, _INT32)
    return elementwise(builder, "Sub", wide, like(wide, 128))


def _is_row_of(zero_point: Tensor, b: Tensor) -> bool:
    """Whether MatMulInteger takes one for each column: of one matrix."""
    return b.ndim == 2 and is_row(zero_point)


def _multiplied(builder: Builder, a: Tensor, b: Tensor, a_point: Tensor | None, b_point: Tensor | None, shape) -> Tensor:
    """MatMulInteger with zero points that it takes."""
    a_point = None if a_point is None else reshape(builder, cast(builder, a_point, a.dtype), ())
    if b_point is not None:
        b_point = cast(builder, b_point, b.dtype)
        b_point = reshape(builder, b_point, () if is_single(b_point) else b_point.shape[-1:])
    type = jax.ShapeDtypeStruct(shape, _INT32)
    return builder.node("MatMulInteger", [a, b, a_point, b_point], type, since=10, label="product")


def _times(builder: Builder, a: Tensor, b: Tensor) -> Tensor:
    return elementwise(builder, "Mul", cast(builder, a, _INT32), cast(builder, b, _INT32))


def row_sums(builder: Builder, a: Tensor, zero_point: Tensor | None) -> Tensor:
    """The sums of ``a - zero_point`` along K, in int32, of shape (..., M, 1)."""
    ones = like(Tensor(_INT8, (a.shape[-1], 1)), 1)
    return integer_product(builder, a, ones, zero_point, None)


def _column_sums(builder: Builder, b: Tensor, zero_point: Tensor | None) -> Tensor:
    """The sums of ``b - zero_point`` along K, in int32, of shape (..., 1, N); the zero point has one element or N."""
    point = 0 if zero_point is None else zero_point.known
    if b.known is not None and point is not None:
        sums = b.known.sum(-2, dtype=np.int32, keepdims=True)
        return known(sums - np.int32(b.shape[-2]) * np.asarray(point, np.int32))
    ones = like(Tensor(_INT8, (1, b.shape[-2])), 1)
    return _multiplied(builder, ones, b, None, zero_point, (*b.shape[:-2], 1, b.shape[-1]))


def integer_convolution(
    builder: Builder, x: Tensor, w: Tensor, x_zero_point: Tensor | None, w_zero_point: Tensor | None, geometry: Geometry
) -> Tensor:
    """The convolution of ``x - x_zero_point`` and ``w - w_zero_point`` in int32, by ConvInteger.

    Args:
      x: of shape (batch, channels, ...), padded with its zero point.
      w: of shape (filters, channels, ...).
      x_zero_point: one element; None for 0.
      w_zero_point: one element, or one for each filter; None for 0.
    """
    x_zero_point, w_zero_point = unless_zero(x_zero_point), unless_zero(w_zero_point)
    if w_zero_point is not None:
        w, w_zero_point = _without_zero_point(w, w_zero_point)
    point = w_zero_point if w_zero_point is not None and is_single(w_zero_point) else None
    product = _convolved(builder, x, w, x_zero_point, point, geometry)
    if w_zero_point is not None and point is None:
        filters = w.shape[0] if geometry.groups > 1 else 1
        ones = like(Tensor(_INT8, (filters, *w.shape[1:])), 1)
        sums = _convolved(builder, x, ones, x_zero_point, None, geometry)
        w_zero_point = reshape(builder, w_zero_point, (w.shape[0], *(1 for _ in w.shape[2:])))
        product = elementwise(builder, "Sub", product, _times(builder, sums, w_zero_point))
    return product


def _without_zero_point(w: Tensor, zero_point: Tensor) -> tuple[Tensor, Tensor | None]:
    """Filters less their zero points, if they are known and the differences fit into int8."""
    if w.known is None or zero_point.known is None or is_single(zero_point):
        return w, zero_point
    points = zero_point.known.astype(np.int16).reshape(-1, *(1,) * (w.ndim - 1))
    folded = narrowed(w.known.astype(np.int16) - points)
    return (w, zero_point) if folded is None else (known(folded, w.label), None)


def narrowed(integers: np.ndarray) -> np.ndarray | None:
    """The integers as int8; None if it does not hold them."""
    narrow = integers.astype(np.int8)
    return narrow if np.array_equal(narrow, integers) else None


def _convolved(builder: Builder, x: Tensor, w: Tensor, x_point: Tensor | None, w_point: Tensor | None, geometry) -> Tensor:
    points = [
        None if point is None else reshape(builder, cast(builder, point, of.dtype), ())
        for point, of in ((x_point, x), (w_point, w))
    ]
    type = jax.ShapeDtypeStruct((x.shape[0], w.shape[0], *geometry.windows.counts(x.shape[2:])), _INT32)
    attributes = convolution_attributes(geometry)
    return builder.node("ConvInteger", [x, w, *points], type, since=10, label="convolution", **attributes)


def convolution_attributes(geometry: Geometry) -> dict[str, Any]:
    """The attributes of ONNX's convolutions."""
    given = geometry.windows
    return windows.attributes(given.strides, given.dilations, given.padding, geometry.groups)


def followed(builder: Builder, epilogue: epilogues.Epilogue, product: Tensor) -> Tensor:
    """The steps of an epilogue on a product, each rounded once. The arrays of the steps broadcast to the product."""
    for step in epilogue:
        write = _STEPS.get(type(step))
        result = None if write is None else write(builder, step, product)
        product = _in_jax(builder, step, product) if result is None else result
    return product


def _in_jax(builder: Builder, step: epilogues.Step, product: Tensor) -> Tensor:
    """A step without a writer, as it computes in JAX."""
    leaves, structure = jax.tree.flatten(step)

    def apply(product: jax.Array, *leaves: jax.Array) -> jax.Array:
        return structure.unflatten(leaves)(product)

    return walk.traced(builder, apply, product, *leaves)


def _dequantized(builder: Builder, step: epilogues.Dequantize, product: Tensor) -> Tensor:
    a_scale, b_scale, bias, dtype = (getattr(step, field.name) for field in dataclasses.fields(step))
    real = elementwise(builder, "Mul", cast(builder, product, _FLOAT32), scale_product(builder, a_scale, b_scale))
    return cast(builder, real if bias is None else elementwise(builder, "Add", real, bias), dtype)


def _requantized(builder: Builder, step: epilogues.Requantize, product: Tensor) -> Tensor | None:
    """QuantizeLinear with a scale of 1. It takes one zero point, or one for each row."""
    multiplier: Any = step.multiplier
    zero_point: Any = step.zero_point
    real = elementwise(builder, "Mul", cast(builder, product, _FLOAT32), multiplier)
    type = jax.ShapeDtypeStruct(real.shape, step.dtype)
    if zero_point is None:
        zero_point = known(np.zeros((), step.dtype))
    zero_point = cast(builder, zero_point, step.dtype)
    if is_single(zero_point):
        one, zero_point = known(np.ones((), np.float32)), reshape(builder, zero_point, ())
        return builder.node("QuantizeLinear", [real, one, zero_point], type, since=13, label="quantized")
    axis = real.ndim - 2
    rows = real.shape[axis]
    if not sizes_equal(zero_point.shape, (*(1,) * axis, rows, 1)):
        return None
    one, zero_point = like(Tensor(_FLOAT32, (rows,)), 1), reshape(builder, zero_point, (rows,))
    return builder.node("QuantizeLinear", [real, one, zero_point], type, since=13, axis=axis, label="quantized")


_STEPS: dict[type, Any] = {epilogues.Dequantize: _dequantized, epilogues.Requantize: _requantized}


def scale_product(builder: Builder, a: Tensor, b: Tensor) -> Tensor:
    """``fl(a * b)`` of scales, one of which is a single number, or which are a column and a row.

    Arguments of any rank; with several elements, they broadcast to the product that they belong to.

    onnxruntime merges a MatMulInteger, a Cast and a Mul by a Mul into one node, which rounds in another order. So the scales
    are multiplied in another shape, and the node between does not let it: a reshape of numbers that change their shape.
    """
    if builder.shared.form != "exact" or (a.is_known and b.is_known):
        return elementwise(builder, "Mul", a, b)
    if is_single(a) or is_single(b):
        one, other = (a, b) if is_single(a) else (b, a)
        flat = reshape(builder, other, (_size(other),) if not is_single(other) else ())
        product = elementwise(builder, "Mul", flat, reshape(builder, one, ()))
        return reshape(builder, product, other.shape if other.ndim > 1 else (1, *product.shape))
    b = reshape(builder, b, (*b.shape[:-2], 1, *b.shape[-2:])) if not is_row(b) else reshape(builder, b, b.shape[-1:])
    product = elementwise(builder, "Mul", reshape(builder, a, (*a.shape, 1)), b)
    return reshape(builder, product, (*product.shape[:-2], product.shape[-1]))


def _size(x: Tensor) -> Size:
    sizes: Sequence[Size] = [size for size in x.shape if not is_one(size)]
    if len(sizes) == 1:
        return sizes[0]
    assert is_static(x.shape)
    return int(np.prod(x.shape))
