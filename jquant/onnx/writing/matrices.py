"""Packed weights as plain matrices: initializers of shape (K, N), which are named as the packed matrix is."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import four_bit_floats, packed_int4, signs
from jquant.onnx.writing import walk
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import reshape, transpose
from jquant.onnx.writing.tensor import Tensor, known
from jquant.packed.block_matrix import Layout, PackedBlockMatrix
from jquant.packed.matrix import PackedMatrix

_FIELD = ".data"  # of a packed matrix, in the path of a parameter


def matrix_label(label: str) -> str:
    """The name of a matrix, from that of the integers that it is packed in."""
    return label.removesuffix(_FIELD)


def swapped(builder: Builder, x: Tensor) -> Tensor:
    """Packed integers in shape (..., K, N) in place of (..., N, K)."""
    order = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    if x.known is None:
        return transpose(builder, x, order)
    array, label = x.known, matrix_label(x.label)
    return builder.once(("swapped", x), lambda: known(np.swapaxes(array, -1, -2), label))


def plain(builder: Builder, matrix: PackedMatrix) -> tuple[Tensor, Tensor | None]:
    """A packed matrix of shape (..., K, N) in its own type, and its zero point."""
    data: Any = matrix.data
    b = swapped(builder, data)
    if matrix.dtype == np.uint8:
        if b.known is not None:
            array, label = b.known, b.label
            b = builder.once(("unsigned", b), lambda: known(array.view(np.uint8) ^ np.uint8(0x80), label))
        else:
            b = walk.traced(builder, lambda x: signs.from_int8(x, np.dtype(np.uint8)), b)
    zero_point: Any = matrix.zero_point
    return b, zero_point


def integers(builder: Builder, matrix: PackedBlockMatrix) -> Tensor:
    """The integers of a matrix in whole blocks, of shape (..., K + padding, N): int16 if they are known, else int32."""
    data: Any = matrix.data

    def of_data(data: jax.Array) -> jax.Array:
        return dataclasses.replace(matrix, data=data, scale=None, zero_point=None, minimum=None).integers()

    if data.known is None:
        return walk.traced(builder, functools.partial(_wide_integers, matrix), data)
    return known(np.asarray(of_data(data.known)), matrix_label(data.label))


def _wide_integers(matrix: PackedBlockMatrix, data: jax.Array) -> jax.Array:
    """The integers in int32, in which ONNX has arithmetic, by steps that it has for 32 bits."""
    if matrix.layout in (Layout.K_MAJOR_WORDS, Layout.K_MAJOR_BYTES):
        data = jnp.swapaxes(data, -1, -2)
    if matrix.layout in (Layout.BYTES, Layout.K_MAJOR_BYTES):
        return data.astype(jnp.int32) - matrix.offset
    words, sign = data.astype(jnp.int32), 8 if matrix.layout == Layout.K_MAJOR_WORDS else 0
    places = [(words // 16**place) % 16 for place in range(packed_int4.PER_WORD)]
    rows = jnp.stack(places, -2).reshape(*words.shape[:-2], -1, words.shape[-1])
    if matrix.layout == Layout.CODES:
        return four_bit_floats.doubled(rows)
    return (rows + sign) % 16 - sign - matrix.offset


def in_blocks(builder: Builder, x: Tensor, block_size: int) -> Tensor:
    """Rows of shape (..., K, N) in blocks: (..., G, block_size, N)."""
    *batch, k, n = x.shape
    return reshape(builder, x, (*batch, k // block_size, block_size, n))
