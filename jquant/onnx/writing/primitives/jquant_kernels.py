"""The products and convolutions of jquant's kernels, with the steps that follow them."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from jquant.errors import ModelError
from jquant.onnx.writing import convolution_layouts, kernel_types, matrices, patches
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.integer_products import (
    followed,
    integer_convolution,
    integer_product,
    is_single,
    narrowed,
    row_sums,
)
from jquant.onnx.writing.steps import broadcast, cast, elementwise, joined, reshape, transpose
from jquant.onnx.writing.table import primitive
from jquant.onnx.writing.tensor import Tensor, known

_FLOAT32 = np.dtype(np.float32)


@primitive("integer_dot")
def _integer_dot(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    a, b, *arrays = operands
    points, epilogue, _ = jax.tree.unflatten(equation.params["steps"], arrays)
    if equation.params["transpose_b"]:
        b = matrices.swapped(builder, b)
    return followed(builder, epilogue, integer_product(builder, a, b, points.a, points.b))


@primitive("integer_convolution")
def _integer_convolution(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    x, w, *arrays = operands
    x_zero_point, w_zero_point, epilogue = jax.tree.unflatten(equation.params["steps"], arrays)
    geometry = equation.params["geometry"]
    by_patches = builder.shared.form == "exact" and geometry.groups == 1
    write = _convolution_by_patches if by_patches else _convolution_by_node
    return write(builder, x, w, x_zero_point, w_zero_point, geometry, epilogue)


def _convolution_by_patches(
    builder: Builder, x: Tensor, w: Tensor, x_zero_point, w_zero_point, geometry, epilogue
) -> Tensor:
    product = patches.convolution(builder, x, w, x_zero_point, w_zero_point, geometry)

    def by_column(value: Tensor) -> Tensor:
        return value if is_single(value) else reshape(builder, value, (*(1,) * (product.ndim - 1), product.shape[-1]))

    result = followed(builder, jax.tree.map(by_column, epilogue), product)
    return convolution_layouts.restored(builder, result, geometry, channels_last=True)


def _convolution_by_node(builder: Builder, x: Tensor, w: Tensor, x_zero_point, w_zero_point, geometry, epilogue) -> Tensor:
    if any(size < 0 for sizes in geometry.windows.padding for size in sizes):
        raise ModelError("a convolution with negative padding is not written")
    x = convolution_layouts.arranged_input(builder, x, geometry)
    batch = x.shape[: -len(geometry.windows.sizes) - 1]
    x = reshape(builder, x, (math.prod(batch), *x.shape[len(batch) :]))
    w = convolution_layouts.arranged_filter(builder, w, geometry)
    product = integer_convolution(builder, x, w, x_zero_point, w_zero_point, geometry)

    def by_filter(value: Tensor) -> Tensor:
        return value if is_single(value) else reshape(builder, value, (1, w.shape[0], *(1 for _ in w.shape[2:])))

    result = followed(builder, jax.tree.map(by_filter, epilogue), product)
    result = reshape(builder, result, (*batch, *result.shape[1:]))
    return convolution_layouts.restored(builder, result, geometry)


@primitive("block_dot")
def _block_dot(builder: Builder, equation: Any, operands: list[Tensor]) -> Tensor:
    """A batch of products, one for each block, whose results are added up in the order that the kernels promise."""
    a, zero_point, b, epilogue = jax.tree.unflatten(equation.params["tree"], operands)
    blocks = b.scale.shape[-2]
    a = _padded(builder, a, zero_point, b.padding)
    *batch, m, _ = a.shape
    a = reshape(builder, a, (*batch, m, blocks, b.block_size))
    a = transpose(builder, a, (*range(len(batch)), a.ndim - 2, a.ndim - 3, a.ndim - 1))
    zero_point = None if zero_point is None else _beside_blocks(builder, zero_point, -2)
    values, b_zero_point = _matrix(builder, b)
    product = integer_product(builder, a, values, zero_point, b_zero_point)
    by_block = functools.partial(_beside_blocks, builder, axis=-1)
    terms = elementwise(builder, "Mul", cast(builder, product, _FLOAT32), by_block(cast(builder, b.scale, _FLOAT32)))
    if b.minimum is not None:
        sums = cast(builder, row_sums(builder, a, zero_point), _FLOAT32)
        minimum = elementwise(builder, "Mul", sums, by_block(cast(builder, b.minimum, _FLOAT32)))
        terms = elementwise(builder, "Add", terms, minimum)
    total = _total(builder, terms, equation.params["k_parts"])
    return followed(builder, epilogue, total)


def _padded(builder: Builder, a: Tensor, zero_point: Tensor | None, padding: int) -> Tensor:
    """A, padded to whole blocks by its zero points, of which each row may have its own."""
    if not padding:
        return a
    shape = (*a.shape[:-1], padding)
    edge = known(np.zeros((1,) * a.ndim, a.dtype)) if zero_point is None else cast(builder, zero_point, a.dtype)
    edge = broadcast(builder, reshape(builder, edge, (1,) * (a.ndim - edge.ndim) + edge.shape), shape, range(a.ndim))
    return joined(builder, [a, edge], a.ndim - 1)


def _matrix(builder: Builder, b: Any) -> tuple[Tensor, Tensor | None]:
    """The integers in blocks, of shape (..., G, block_size, N), as int8 or uint8; and their zero points, (..., G, 1, N).

    Where int8 holds the known integers less their zero points, there are none left.
    """
    return builder.once(("in blocks", *jax.tree.leaves(b)), lambda: _in_blocks(builder, b))


def _in_blocks(builder: Builder, b: Any) -> tuple[Tensor, Tensor | None]:
    integers = matrices.in_blocks(builder, matrices.integers(builder, b), b.block_size)
    zero_point = None if b.zero_point is None else _beside_blocks(builder, b.zero_point, -1)
    point = 0 if zero_point is None else zero_point.known
    if integers.known is not None and point is not None:
        differences = integers.known - np.asarray(point, np.int16)
        if b.padding:
            differences[..., -1, b.block_size - b.padding :, :] = 0
        narrow = narrowed(differences)
        if narrow is not None:
            return _stored(builder, narrow, integers.label), None
    return cast(builder, integers, np.uint8 if jnp.iinfo(b.dtype).min == 0 else np.int8), zero_point


_FEW_BYTES = 256  # for which a conversion in the model would be no smaller


def _stored(builder: Builder, integers: np.ndarray, label: str) -> Tensor:
    """int8 weights; of those that 4 bits hold, the model holds no more, and a node converts them."""
    narrow = integers.astype(jnp.int4)
    if integers.nbytes <= _FEW_BYTES or not np.array_equal(narrow, integers):
        return known(integers, label)
    if builder.shared.is_fixed and builder.version < kernel_types.SINCE_INT4:
        builder.shared.widened[label] = integers.nbytes // 2
        return known(integers, label)
    type = jax.ShapeDtypeStruct(integers.shape, integers.dtype)
    to = onnx.TensorProto.INT8
    return builder.node("Cast", [known(narrow, label)], type, since=13, to=to, label=label)


def _beside_blocks(builder: Builder, x: Tensor, axis: int) -> Tensor:
    """An array of shape (..., G, N) as (..., G, 1, N), for axis -1; or of shape (..., M, 1) as (..., 1, M, 1), for -2."""
    where = x.ndim + axis
    return reshape(builder, x, (*x.shape[:where], 1, *x.shape[where:]))


def _total(builder: Builder, terms: Tensor, k_parts: int) -> Tensor:
    """The sum over the blocks, the third dimension from the end: of each of the runs in order, and of these in pairs."""
    *batch, blocks, m, n = terms.shape
    parts = [terms]
    if blocks > 1:
        types = [jax.ShapeDtypeStruct((*batch, 1, m, n), terms.dtype)] * blocks
        sizes = known(np.ones(blocks, np.int64))
        parts = builder.node("Split", [terms, sizes], types, since=13, axis=len(batch), label="term")
    add = functools.partial(elementwise, builder, "Add")
    length = blocks // k_parts
    runs: Sequence[Tensor] = [functools.reduce(add, parts[start : start + length]) for start in range(0, blocks, length)]
    while len(runs) > 1:
        runs = [add(*pair) for pair in zip(runs[::2], runs[1::2], strict=True)]
    return reshape(builder, runs[0], (*batch, m, n))
