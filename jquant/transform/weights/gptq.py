"""GPTQ: rounds a matrix so that its product with the inputs of calibration changes least.

Frantar, Ashkboos, Hoefler and Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers".
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.transform.formats.stored_weights import BlockParameters, WeightFormat
from jquant.transform.recipes.preparation import Gptq

_BLOCK = 32  # rows whose errors are added up before the rows after them are changed
_HIGHEST = lax.Precision.HIGHEST


def rounded(
    format: WeightFormat, gptq: Gptq, matrix: jax.Array, parameters: BlockParameters, products: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The rounded matrix, (K, N) in float32, and whether that succeeded.

    Args:
      format: what rounds a row.
      gptq: the options.
      matrix: float32, (K, N).
      parameters: those of the blocks, which are kept: a row has those of its block, in whatever order rows are rounded.
      products: X^T X of the inputs, float32, (K, K).

    With H = X^T X and damping, and ``H^-1 = U^T U`` for an upper triangular U, row k is rounded to q, and each later row j
    becomes ``w_j - U[k, j] / U[k, k] * (w_k - q)``. It succeeds if H is positive definite in float32, which damping provides
    for.
    """
    rows = matrix.shape[0]
    order, hessian = _ordered(gptq, products)
    upper, succeeded = _inverse_factor(hessian)
    padding = -rows % _BLOCK
    upper = jnp.pad(upper, ((0, padding), (0, padding)))
    upper = upper + jnp.diag((jnp.arange(rows + padding) >= rows).astype(jnp.float32))
    remaining = jnp.pad(matrix[order], ((0, padding), (0, 0)))
    block_of_row = jnp.pad(order // format.rows_of_a_block(rows), (0, padding))

    def round_row(row: jax.Array, block: jax.Array) -> jax.Array:
        own = {name: array[block][None] if array.ndim else array for name, array in parameters.items()}
        return format.rounded(row[None], own)[0]

    def round_block(remaining: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
        own = lax.dynamic_slice_in_dim(remaining, start, _BLOCK)
        factors = lax.dynamic_slice_in_dim(upper, start, _BLOCK)
        inner = lax.dynamic_slice_in_dim(factors, start, _BLOCK, axis=1)
        block_numbers = lax.dynamic_slice_in_dim(block_of_row, start, _BLOCK)

        def step(k: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            own, results, errors = state
            result = round_row(own[k], block_numbers[k])
            error = (own[k] - result) / inner[k, k]
            own = own - inner[k][:, None] * error[None]
            return own, results.at[k].set(result), errors.at[k].set(error)

        zeros = jnp.zeros_like(own)
        _, results, errors = lax.fori_loop(0, _BLOCK, step, (own, zeros, zeros))
        later = jnp.arange(rows + padding) >= start + _BLOCK
        change = jnp.matmul(jnp.where(later[None], factors, 0).T, errors, precision=_HIGHEST)
        return remaining - change, results

    starts = jnp.arange(0, rows + padding, _BLOCK)
    results = lax.scan(round_block, remaining, starts)[1].reshape(rows + padding, -1)[:rows]
    return results[jnp.argsort(order)], succeeded


def corrected(gptq: Gptq, matrix: jax.Array, products: jax.Array, errors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The matrix that makes up for errors of its inputs, (K, N) in float32, and whether that succeeded.

    With H = X^T X and damping, and D = X^T (Y - X), for inputs X in whose place the float network has Y, it is
    ``W + correction * H^-1 D W``: with a correction of 1 and no damping, the W' for which ``X W'`` is nearest to ``Y W``.
    Arai and Ichikawa, "Quantization Error Propagation: Revisiting Layer-Wise Post-Training Quantization".
    """
    factor = jax.scipy.linalg.cho_factor(_damped(gptq, products), lower=True)
    change = jax.scipy.linalg.cho_solve(factor, jnp.matmul(errors, matrix, precision=_HIGHEST))
    return matrix + np.float32(gptq.correction) * change, jnp.isfinite(change).all()


def _ordered(gptq: Gptq, products: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rows in the order in which they are rounded, and H in that order."""
    diagonal = jnp.diagonal(products)
    order = jnp.argsort(-diagonal) if gptq.activation_order else jnp.arange(len(diagonal))
    return order, _damped(gptq, products)[order][:, order]


def _damped(gptq: Gptq, products: jax.Array) -> jax.Array:
    diagonal = jnp.diagonal(products)
    is_dead = diagonal == 0  # an input that is always 0: its row has no part in any sum, and is rounded to nearest
    return products + jnp.diag(jnp.where(is_dead, 1, 0) + np.float32(gptq.damping) * diagonal.mean())


def _inverse_factor(hessian: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The upper triangular U with ``U^T U = H^-1``, and whether it exists in float32."""
    # The factor of H in reverse order, reversed, is upper triangular: H = V V^T, and U is the inverse of V.
    lower = jnp.linalg.cholesky(hessian[::-1, ::-1])
    identity = jnp.eye(len(hessian), dtype=jnp.float32)
    upper = lax.linalg.triangular_solve(lower, identity, left_side=True, lower=True)[::-1, ::-1]
    return upper, jnp.isfinite(upper).all()
