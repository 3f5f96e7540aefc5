"""Slices and columns that indices select."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jquant.arithmetic import exact
from jquant.formulas import affine
from jquant.formulas.granularity import Granularity
from jquant.packed.block_matrix import PackedBlockMatrix
from jquant.quantized_tensor import Quantized


def from_start(indices: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Indices counted from the start of an axis, where negative ones count from its end; and which are inside of it."""
    return jnp.where(indices < 0, indices + size, indices), (indices >= -size) & (indices < size)


def found(x: jax.Array, index: jax.Array, axis: int) -> jax.Array:
    """The slices of `x`, or zeros where it has none.

    On a mesh of explicit axes, they are split as the indices are, and as `x` is along the other axes.
    """
    if x.shape[axis] == 0:
        return jnp.zeros((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)
    specs = jax.typeof(x).sharding.spec, jax.typeof(index).sharding.spec
    split = any(entry is not None for spec in specs for entry in spec)
    spec = PartitionSpec(*specs[0][:axis], *specs[1], *specs[0][axis + 1 :])
    sharding = jax.typeof(index).sharding.update(spec=spec) if split else None
    x = jnp.asarray(x)  # without jax.jit, it may be an array of NumPy's
    return x.at[(*(slice(None),) * axis, index)].get(mode="clip", out_sharding=sharding)


def columns(matrix: PackedBlockMatrix, indices: jax.Array) -> jax.Array:
    """Columns of a (K, N) matrix without minima, dequantized, of shape (*indices.shape, K); zeros for indices outside of it.

    Only the integers of these columns are unpacked.
    """
    k, n = matrix.shape
    index, is_inside = from_start(indices, n)
    # A matrix of one column for each index.
    by_rows = matrix.n_minor(may_be_codes=True)
    each = jax.tree.map(lambda x: jnp.moveaxis(found(x, index[..., None], 1), 0, -2), by_rows)
    values = Quantized(each.integers()[..., :k, :], each.scale, each.zero_point)
    rows = affine.dequantize(Granularity(indices.ndim, matrix.block_size).expand(values))[..., 0]
    return exact.narrow(jnp.where(lax.expand_dims(is_inside, (indices.ndim,)), rows, 0), matrix.scale.dtype)
