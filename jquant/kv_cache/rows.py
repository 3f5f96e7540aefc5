"""The rows of a cache: how they are rounded, and how an array gets them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jquant.formulas import symmetric
from jquant.quantized_tensor import Quantized


def quantized(x: jax.Array, dtype: np.dtype) -> Quantized:
    """Rows along the last dimension in a signed integer type, with a scale for each, which is 0 for a row of zeros."""
    return symmetric.quantized(x, (x.ndim - 1,), dtype)


def updated(array: jax.Array, rows: jax.Array, position: jax.Array, layer: ArrayLike | None = None) -> jax.Array:
    """An array of a cache with `rows` from a position on, in the same memory where XLA may reuse it.

    Args:
      array: (layers, batch, heads, length, ...); if `layer` is None, without layers.
      rows: (batch, heads, tokens, ...).
      position: int32, a scalar, or one for each sequence in shape (batch,). Tokens that would lie outside move back into it.
    """
    if layer is None:
        return lax.squeeze(updated(lax.expand_dims(array, (0,)), rows, position, np.int32(0)), (0,))
    if position.ndim == 0:
        zero = np.int32(0)  # a Python int would be int64 where 64-bit types are enabled
        start = layer, zero, zero, position, *(zero,) * (rows.ndim - 3)
        return lax.dynamic_update_slice(array, lax.expand_dims(rows, (0,)), start)
    # What jax.vmap makes of it would transpose the whole array, and a loop over the sequences would gather them on a mesh.
    indices = jnp.stack([jnp.full_like(position, layer), position], -1)
    dimensions = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, rows.ndim)),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0, 3),
        operand_batching_dims=(1,),
        scatter_indices_batching_dims=(0,),
    )
    return lax.scatter(array, indices, rows, dimensions, indices_are_sorted=True, unique_indices=True, mode="clip")
