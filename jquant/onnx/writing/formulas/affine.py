"""QuantizeLinear and DequantizeLinear nodes, with scales and zero points that broadcast as in jquant's formulas."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from jquant.onnx.graphs.graph import DEFAULT_DOMAIN, MICROSOFT
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import broadcast, cast, reshape
from jquant.onnx.writing.tensor import Size, Tensor, is_static, known

_OF_16_BITS = frozenset(("int16", "uint16"))
_NOT_DEQUANTIZED = frozenset(("uint32",))


class NodeParameters(NamedTuple):
    """The scale and the zero point of a node, and where they apply.

    Attributes:
      scale: float32.
      zero_point: of the type of the integers; None means 0.
      axis, block_size: the attributes; None if there is a single scale, or one for each index.
    """

    scale: Tensor
    zero_point: Tensor | None
    axis: int | None
    block_size: int | None

    @property
    def since(self) -> int:
        return 13 if self.block_size is None else 21


def parameters(
    builder: Builder,
    shape: tuple[Size, ...],
    scale: Tensor,
    zero_point: Tensor | None,
    axis: int | None = None,
    block_size: int | None = None,
) -> NodeParameters | None:
    """The parameters of a tensor of this shape, from arrays that broadcast to it; None if no node takes such ones.

    Args:
      axis, block_size: those of blocks, for arrays with one element for each block.
    """
    given = [cast(builder, scale, np.float32)] + ([] if zero_point is None else [zero_point])
    given = [_without_repetition(builder.broadcastable(each)) for each in given]
    if not all(is_static(each.shape) for each in given):
        return None
    common = lax.broadcast_shapes(*(each.shape for each in given))
    if axis is None or block_size is None or all(size == 1 for size in common):
        axis = block_size = None
        along = [dimension for dimension, size in enumerate(common, len(shape) - len(common)) if size != 1]
        if len(along) > 1 or any(dimension < 0 or shape[dimension] == 1 for dimension in along):
            return None
        sizes: tuple[Size, ...] = ()
        for axis in along:
            sizes = (shape[axis],)
    elif is_static(shape):
        sizes = tuple(common[axis] if dimension == axis else size for dimension, size in enumerate(shape))
        common = sizes
    else:
        return None
    operands = [reshape(builder, _spread(builder, each, common), sizes) for each in given]
    return NodeParameters(operands[0], operands[1] if len(operands) > 1 else None, axis, block_size)


def _without_repetition(x: Tensor) -> Tensor:
    """`x`, or its element if it is known to have only one that repeats."""
    if x.known is None or x.known.size < 2 or not (x.known == x.known.flat[0]).all():
        return x
    return known(x.known.flat[:1].reshape(()), x.label)


def _spread(builder: Builder, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`x` in a shape to which it broadcasts."""
    if x.known is not None:
        return known(np.broadcast_to(x.known, shape), x.label)
    return broadcast(builder, x, shape, range(len(shape) - x.ndim, len(shape)))


def quantize(builder: Builder, x: Tensor, given: NodeParameters | None, dtype: Any, saturate: bool = True) -> Tensor | None:
    """``sat(rne(x / scale) + zero_point)`` in one node, of `x` of any type; None if there is none that says this."""
    dtype = np.dtype(dtype)
    if given is None or (dtype.itemsize > 2):
        return None
    zero_point = given.zero_point
    if zero_point is None:  # it also states the type of the result
        zero_point = known(np.broadcast_to(np.zeros((), dtype), given.scale.shape))
    domain, since = DEFAULT_DOMAIN, given.since
    if dtype.name in _OF_16_BITS and builder.version < 21:
        if given.block_size is not None:
            since = 21
        elif builder.allows(MICROSOFT):
            domain, since = MICROSOFT, 1
        elif builder.shared.form == "exact":
            return None
        else:
            since = 21
    return builder.node(
        "QuantizeLinear",
        [cast(builder, x, np.float32), given.scale, zero_point],
        jax.ShapeDtypeStruct(x.shape, dtype),
        domain=domain,
        since=since,
        axis=given.axis,
        block_size=given.block_size,
        saturate=None if saturate else 0,
        label="quantized",
    )


def dequantize(builder: Builder, x: Tensor, given: NodeParameters | None) -> Tensor | None:
    """``(x - zero_point) * scale`` in float32, in one node; None if there is none that says this."""
    if given is None or x.dtype.name in _NOT_DEQUANTIZED:
        return None
    zero_point = given.zero_point
    if x.dtype == np.int32 and zero_point is not None:
        if zero_point.known is None or zero_point.known.any():
            return None  # onnxruntime's difference wraps
        zero_point = None
    domain, since = DEFAULT_DOMAIN, given.since
    if x.dtype.name in _OF_16_BITS and builder.version < 21 and given.block_size is None:
        domain, since = (MICROSOFT, 1) if builder.allows(MICROSOFT) else (DEFAULT_DOMAIN, 21)
    return builder.node(
        "DequantizeLinear",
        [x, given.scale, zero_point],
        jax.ShapeDtypeStruct(x.shape, np.dtype(np.float32)),
        domain=domain,
        since=since,
        axis=given.axis,
        block_size=given.block_size,
        label="dequantized",
    )
