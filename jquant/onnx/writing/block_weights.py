"""Known weights of few bits with a scale for each block of rows, as MatMulNBits and as ONNX's own nodes take them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from jquant.arithmetic import subbyte
from jquant.onnx.writing import matrices
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.steps import cast, elementwise, reshape, sliced, transpose
from jquant.onnx.writing.tensor import Tensor, all_known, known
from jquant.packed.block_matrix import PackedBlockMatrix

_FLOAT32 = np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class BlockWeights:
    """Weights of shape (K, N), in blocks.

    Attributes:
      integers: of shape (G, block_size, N).
      dtype: the type that holds them: int4, uint4, int8 or uint8.
      bits: how many of them they need.
      scale: floats of shape (G, N).
      zero_point: None for 0, or integers, or floats, of shape (G, N).
      minimum: None, or floats of shape (G, N) that are added.
      rows: K; the last block may have fewer rows than it holds.
      label: what the weights are called.
    """

    integers: np.ndarray
    dtype: np.dtype
    bits: int
    scale: Tensor
    zero_point: np.ndarray | None
    minimum: Tensor | None
    rows: int
    label: str


def of_packed(builder: Builder, matrix: PackedBlockMatrix) -> BlockWeights | None:
    """A packed matrix; None if its integers are not known, or for a batch of matrices."""
    scale: Any = matrix.scale
    minimum: Any = matrix.minimum
    zero_point: Any = matrix.zero_point
    integers = matrices.integers(builder, matrix) if all_known(matrix.data, zero_point) else None
    if integers is None or integers.known is None or scale.ndim != 2:
        return None
    blocks, n = scale.shape
    return BlockWeights(
        integers=integers.known.reshape(blocks, matrix.block_size, n),
        dtype=matrix.dtype,
        bits=jnp.iinfo(matrix.dtype).bits,
        scale=scale,
        zero_point=None if zero_point is None else zero_point.known,
        minimum=minimum,
        rows=blocks * matrix.block_size - matrix.padding,
        label=integers.label,
    )


def of_stored(b: Tensor, scales: Tensor, zero_points: Tensor | None, bits: int, rows: int) -> BlockWeights | None:
    """Weights in the layout of MatMulNBits; None if they are not known."""
    if b.known is None or not all_known(b, zero_points):
        return None
    integers = np.asarray(subbyte.unpacked(jnp.asarray(b.known), bits))
    points = np.full(scales.shape, 2 ** (bits - 1), np.uint8) if zero_points is None else zero_points.known
    if points is not None and zero_points is not None and points.dtype == np.uint8:
        points = np.asarray(subbyte.unpacked(jnp.asarray(points), bits))[:, : scales.shape[1]]
    assert points is not None
    return BlockWeights(
        integers=integers.astype(np.int16).transpose(1, 2, 0),
        dtype=jnp.dtype(jnp.uint4 if bits == 4 else jnp.uint8),
        bits=bits,
        scale=_turned(scales),
        zero_point=points.T,
        minimum=None,
        rows=rows,
        label=b.label,
    )


def _turned(x: Tensor) -> Tensor:
    assert x.known is not None
    return known(x.known.T, x.label)


def dequantized(builder: Builder, weights: BlockWeights) -> Tensor:
    """The weights in float32, of shape (K, N), computed by nodes, so that the model holds integers."""
    blocks, size, n = weights.integers.shape
    if weights.dtype.itemsize < 1 or weights.dtype.name.endswith("4"):
        builder.shared.require("Cast", "", 21)
    if builder.shared.form == "qdq" and weights.minimum is None:
        return _by_dequantize_linear(builder, weights)
    integers = known(weights.integers.astype(weights.dtype), weights.label)
    # A node, although the integers are known: their floats are computed while the model runs.
    type = jax.ShapeDtypeStruct(integers.shape, _FLOAT32)
    real = builder.node("Cast", [integers], type, since=13, to=onnx.TensorProto.FLOAT)
    by_block = (blocks, 1, n)
    if weights.zero_point is not None:
        point = known(weights.zero_point.astype(np.float32).reshape(by_block), f"{weights.label}.zero_point")
        real = elementwise(builder, "Sub", real, point)
    real = elementwise(builder, "Mul", real, reshape(builder, cast(builder, weights.scale, _FLOAT32), by_block))
    if weights.minimum is not None:
        minimum = reshape(builder, cast(builder, weights.minimum, _FLOAT32), by_block)
        real = elementwise(builder, "Add", real, minimum)
    return sliced(builder, reshape(builder, real, (blocks * size, n)), (0, 0), (weights.rows, n), (1, 1))


def _by_dequantize_linear(builder: Builder, weights: BlockWeights) -> Tensor:
    _, size, n = weights.integers.shape
    integers = known(weights.integers.reshape(-1, n)[: weights.rows].astype(weights.dtype), weights.label)
    zero_point = weights.zero_point
    point = None if zero_point is None else known(zero_point.astype(weights.dtype), f"{weights.label}.zero_point")
    operands = [integers, cast(builder, weights.scale, _FLOAT32), point]
    type = jax.ShapeDtypeStruct((weights.rows, n), _FLOAT32)
    return builder.node("DequantizeLinear", operands, type, since=21, axis=0, block_size=size, label="weights")


def stored(builder: Builder, weights: BlockWeights) -> tuple[list[Tensor | None], dict[str, int]] | None:
    """The operands of MatMulNBits behind A, and its attributes; None for what it does not take."""
    blocks, size, n = weights.integers.shape
    is_block = size >= 16 and size & (size - 1) == 0
    zero_point = weights.zero_point
    has_integers = zero_point is None or np.issubdtype(zero_point.dtype, np.integer)
    if weights.bits not in (4, 8) or not is_block or weights.minimum is not None or not has_integers:
        return None
    offset = 2 ** (weights.bits - 1) if jnp.iinfo(weights.dtype).min < 0 else 0
    data = _bytes((weights.integers + offset).transpose(2, 0, 1), weights.bits)
    points = np.zeros((blocks, n), np.int16) if zero_point is None else zero_point.astype(np.int16)
    point = None
    if not np.all(points + offset == 2 ** (weights.bits - 1)):
        point = known(_bytes((points + offset).T, weights.bits), f"{weights.label}.zero_point")
    scale = transpose(builder, cast(builder, weights.scale, _FLOAT32), (1, 0))
    attributes = {"K": weights.rows, "N": n, "bits": weights.bits, "block_size": size, "accuracy_level": 1}
    return [known(data, weights.label), scale, point], attributes


def _bytes(integers: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned integers along the last dimension in bytes, the first in the lowest bits."""
    count = 8 // bits
    integers = np.pad(integers, [(0, 0)] * (integers.ndim - 1) + [(0, -integers.shape[-1] % count)]).astype(np.uint8)
    return np.bitwise_or.reduce([integers[..., place::count] << np.uint8(bits * place) for place in range(count)])
