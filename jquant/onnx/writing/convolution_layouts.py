"""The operands of convolutions in ONNX's order of the dimensions, behind those over which `jax.vmap` maps an input."""

from collections.abc import Sequence

from jquant.formulas.convolution_geometry import Geometry
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import transpose
from jquant.onnx.writing.tensor import Tensor


def arranged_input(builder: Builder, x: Tensor, geometry: Geometry, *, channels_last: bool = False) -> Tensor:
    """The input, of shape (..., batch, channels, space), or with the channels last."""
    return _behind(builder, x, _order(geometry.dimensions.lhs_spec, channels_last))


def arranged_filter(builder: Builder, w: Tensor, geometry: Geometry) -> Tensor:
    """The filters, of shape (filters, channels, space)."""
    if w.known is None:
        return transpose(builder, w, geometry.dimensions.rhs_spec)
    order = tuple(geometry.dimensions.rhs_spec)
    return builder.once(("filter", w, order), lambda: transpose(builder, w, order))


def restored(builder: Builder, output: Tensor, geometry: Geometry, *, channels_last: bool = False) -> Tensor:
    """A result of shape (..., batch, filters, space), or with the filters last, in the layout of the output."""
    order = _order(geometry.dimensions.out_spec, channels_last)
    return _behind(builder, output, [order.index(dimension) for dimension in range(len(order))])


def _order(spec: Sequence[int], channels_last: bool) -> list[int]:
    batch, channels, *space = spec
    return [batch, *space, channels] if channels_last else list(spec)


def _behind(builder: Builder, x: Tensor, order: Sequence[int]) -> Tensor:
    mapped = x.ndim - len(order)
    return transpose(builder, x, (*range(mapped), *(mapped + dimension for dimension in order)))
