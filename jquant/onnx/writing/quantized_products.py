"""The products of quantized matrices, as the operators take them."""

from typing import Any, NamedTuple

import numpy as np

from jquant.onnx.writing import matrices
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.integer_products import integer_product, is_single
from jquant.onnx.writing.steps import broadcast, cast, reshape
from jquant.onnx.writing.tensor import Tensor, is_one, is_static, known
from jquant.packed.matrix import PackedMatrix

_FLOAT32 = np.dtype(np.float32)


def column(builder: Builder, x: Any) -> Any:
    """One value, or one for each row, of any rank, in shape (M, 1)."""
    return x if x is None or is_single(x) else reshape(builder, x, (_largest(x), 1))


def row(builder: Builder, x: Any) -> Any:
    """One value, or one for each column, of any rank, in shape (N,); those of several matrices stay as they are."""
    if x is None:
        return None
    is_vector = sum(not is_one(size) for size in x.shape) == 1
    return reshape(builder, x, (_largest(x),)) if is_vector else x


def _largest(x: Tensor) -> Any:
    return next(size for size in x.shape if not is_one(size))


def matrix(builder: Builder, b: Any, zero_point: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """A matrix and its zero point, which packed matrices hold."""
    if isinstance(b, PackedMatrix):
        b, zero_point = matrices.plain(builder, b)
    return b, row(builder, zero_point)


def product(builder: Builder, a: Tensor, b: Any, a_zero_point: Tensor | None, b_zero_point: Tensor | None) -> Tensor:
    """The product of the integers of two matrices, of which the second may be packed."""
    values, b_zero_point = matrix(builder, b, b_zero_point)
    return integer_product(builder, a, values, column(builder, a_zero_point), b_zero_point)


def parameters(builder: Builder, scale: Tensor, zero_point: Tensor | None, dtype: np.dtype) -> tuple[Tensor, Tensor] | None:
    """A scale in float32 and a zero point of `dtype`, both of one element or both a vector, as the QLinear nodes take them.

    None if they are neither.
    """
    scale = cast(builder, scale, _FLOAT32)
    zero_point = known(np.zeros((), dtype)) if zero_point is None else cast(builder, zero_point, dtype)
    sizes = {_largest(x) for x in (scale, zero_point) if not is_single(x)}
    if any(not is_single(x) and x.ndim > 1 for x in (scale, zero_point)) or len(sizes) > 1:
        return None
    if not sizes:
        return reshape(builder, scale, ()), reshape(builder, zero_point, ())
    shape = (sizes.pop(),)
    return _repeated(builder, scale, shape), _repeated(builder, zero_point, shape)


def _repeated(builder: Builder, x: Tensor, shape: tuple) -> Tensor:
    if not is_single(x):
        return x
    if x.known is not None and is_static(shape):
        return known(np.full(shape, x.known.reshape(())), x.label)
    return broadcast(builder, reshape(builder, x, (1,)), shape, (0,))


class LinearOperands(NamedTuple):
    """The operands of a QLinear node, each with its scale and its zero point.

    Attributes:
      a, b: the factors.
      output: the scale and the zero point of the result.
    """

    a: list[Tensor]
    b: list[Tensor]
    output: list[Tensor]


def linear_operands(builder: Builder, a: Any, b: Any, output: Any, output_dtype: np.dtype) -> LinearOperands | None:
    """The operands as QLinearMatMul, QLinearConv and QGemm take them, if they can; `b` may be packed.

    onnxruntime has scales and zero points of A and of the result per tensor, and those of B per column as well. The types of
    A and of the result are the same; signed with unsigned B has no kernel.
    """
    values, zero_point = matrix(builder, b.values, b.zero_point) if isinstance(b.values, PackedMatrix) else b[::2]
    is_supported = a.values.dtype == output_dtype and (a.values.dtype == np.uint8 or values.dtype == np.int8)
    of_a = parameters(builder, a.scale, a.zero_point, a.values.dtype)
    of_b = parameters(builder, row(builder, b.scale), row(builder, zero_point), values.dtype)
    of_output = parameters(builder, output.scale, output.zero_point, output_dtype)
    if of_a is None or of_b is None or of_output is None or not is_supported or 0 in a.values.shape:
        return None
    if not is_single(of_a[0]) or not is_single(of_output[0]):
        return None
    return LinearOperands([a.values, *of_a], [values, *of_b], list(of_output))
