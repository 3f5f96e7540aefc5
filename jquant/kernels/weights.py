"""Weights of few bits, and their conversion to floats."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact, subbyte
from jquant.formulas import affine
from jquant.lowering.symbolic_sizes import joined
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.quantized_tensor import Quantized


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class StoredWeights:
    """Weights of shape (K, N) as onnxruntime stores them, one column after another.

    Attributes:
      data: uint8, of shape (..., N, G, bytes): blocks of unsigned integers, each of whole bytes.
      scale: floats of shape (..., N, G), or one for each row of the weights in shape (..., N, K).
      zero_point: of the shape of `scale`, uint8 or floats. None: the middle of the range.
      bits: per integer: 2, 4 or 8.
      group_size: how many rows share a scale: those of a block, or 1.
    """

    data: jax.Array
    scale: jax.Array
    zero_point: jax.Array | None
    bits: int = dataclasses.field(metadata={"static": True})
    group_size: int = dataclasses.field(metadata={"static": True})

    @property
    def block_size(self) -> int:
        """The number of rows in a block."""
        return self.data.shape[-1] * 8 // self.bits


Weights = StoredWeights | PackedBlockMatrix


def batch_rank(weights: Weights) -> int:
    """The number of batch dimensions."""
    return weights.scale.ndim - 2


def as_one_matrix(a: jax.Array, weights: Weights) -> tuple[jax.Array, Weights] | None:
    """All rows of `a`, of shape (M, K), and the weights without batch dimensions.

    None if there are several matrices of weights, or if their sizes are symbolic.
    """
    rank, leaves = batch_rank(weights), jax.tree.leaves(weights)
    is_static = all(isinstance(size, int) for x in leaves for size in x.shape)
    if not is_static or any(math.prod(x.shape[:rank]) != 1 for x in leaves):
        return None
    rows = a.reshape(joined(a.shape[:-1]), a.shape[-1])
    return rows, jax.tree.map(lambda x: x.reshape(x.shape[rank:]), weights)


def dequantized(weights: Weights, k: int) -> jax.Array:
    """``fl(fl(integers - zero_point) * scale)``, or ``fl(fl(integers * scale) + minimum)``: float32, (..., K, N)."""
    if isinstance(weights, PackedBlockMatrix):
        return dequantized_rows(weights, weights.integers())[..., :k, :]
    groups = weights.scale.shape[-1]
    values = subbyte.unpacked(weights.data, weights.bits)
    values = values.reshape(*values.shape[:-2], values.shape[-2] * values.shape[-1])[..., : groups * weights.group_size]
    real = dequantized_columns(weights, values.reshape(*values.shape[:-1], groups, weights.group_size))
    return jnp.swapaxes(real[..., :k], -1, -2)


def dequantized_columns(weights: StoredWeights, integers: jax.Array) -> jax.Array:
    """Integers of shape (..., N, G, size), of each column and group, as floats of shape (..., N, G * size)."""
    zero_point = np.uint8(2 ** (weights.bits - 1)) if weights.zero_point is None else weights.zero_point[..., None]
    real = _real(integers, weights.scale[..., None], zero_point)
    return real.reshape(*real.shape[:-2], real.shape[-2] * real.shape[-1])


def dequantized_rows(weights: PackedBlockMatrix, integers: jax.Array) -> jax.Array:
    """Integers of whole blocks, of shape (..., G * block_size, N), as floats."""
    *batch, rows, n = integers.shape
    blocks = integers.reshape(*batch, rows // weights.block_size, weights.block_size, n)
    zero_point = None if weights.zero_point is None else weights.zero_point[..., None, :]
    real = _real(blocks, weights.scale[..., None, :], zero_point)
    if weights.minimum is not None:
        real = exact.sum(real, exact.widen(weights.minimum[..., None, :]))
    return real.reshape(*real.shape[:-3], rows, n)


def _real(values: jax.Array, scale: jax.Array, zero_point) -> jax.Array:
    """``fl(fl(values - zero_point) * scale)``"""
    if zero_point is not None and jnp.issubdtype(zero_point.dtype, jnp.floating):
        difference = exact.difference(values.astype(jnp.float32), exact.widen(zero_point))
    else:
        difference = affine.difference(Quantized(values, scale, zero_point)).astype(jnp.float32)
    return exact.product(difference, exact.widen(scale))
