"""The range of each block of weights with the smallest squared error."""

import jax
import jax.numpy as jnp
from jax import lax

from jquant.formulas import blocks
from jquant.transform.formats.stored_weights import BlockParameters, WeightFormat


def search(format: WeightFormat, matrix: jax.Array, importance: jax.Array | None = None) -> BlockParameters:
    """The parameters of a float32 matrix, (..., K, N), from the share of each block's range with the smallest error.

    Errors are sums of ``importance * (w - rounded(w))**2`` over a block in float32, with an importance of each row, of shape
    (K,) or (batch, K), or 1. Of equal errors, that of the first share is taken.
    """
    block_size = format.rows_of_a_block(matrix.shape[-2])
    sizes = *matrix.shape[:-2], -(-matrix.shape[-2] // block_size), matrix.shape[-1]

    of_rows = None if importance is None else jnp.broadcast_to(importance, matrix.shape[:-1])[..., None]

    def errors(share: jax.Array) -> jax.Array:
        parameters = format.parameters(matrix, jnp.broadcast_to(share, sizes))
        squares = jnp.square(matrix - format.rounded(matrix, parameters))
        squares = squares if of_rows is None else squares * of_rows
        return blocks.in_blocks(squares, matrix.ndim - 2, block_size).sum(-2)

    def step(best: tuple[jax.Array, jax.Array], share: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        shares, smallest = best
        error = errors(share)
        is_better = error < smallest
        return (jnp.where(is_better, share, shares), jnp.where(is_better, error, smallest)), None

    initial = jnp.ones(sizes, jnp.float32), jnp.full(sizes, jnp.inf)
    (shares, _), _ = lax.scan(step, initial, jnp.array(format.shares, jnp.float32))
    return format.parameters(matrix, shares)
