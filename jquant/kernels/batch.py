"""The batch dimensions of a product, joined for kernels that take one or none."""

import math
from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

_Matrix = TypeVar("_Matrix")
_Leaves = TypeVar("_Leaves")


def join_rows(a: jax.Array, b: _Matrix, leaves: _Leaves, batch: Sequence[int]) -> tuple[jax.Array, _Matrix, _Leaves] | None:
    """The operands with the batch of A joined to its rows, which all multiply one B; the batch of each becomes (1,).

    None if there is more than one B, if `a` has not the whole batch, or if an array in `leaves` has different columns for
    each batch.

    Args:
      a: shape (..., M, K).
      b: shape (..., K, N) or (..., N, K), or a tree of arrays with one batch.
      leaves: a tree of arrays that belong to the rows of A or the columns of B, with the rank of `a`.
      batch: the batch of the product.
    """
    m = a.shape[-2]

    def rows_of(x: jax.Array) -> jax.Array:
        return x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1])

    def is_shared(x: jax.Array) -> bool:
        return math.prod(x.shape[:-1]) == 1

    def joined(x: jax.Array) -> jax.Array:
        if not is_shared(x):
            x = jnp.broadcast_to(x, (*batch, m, x.shape[-1]))
        return rows_of(x)

    is_one_b = all(math.prod(x.shape[:-2]) == 1 for x in jax.tree.leaves(b))
    is_whole = math.prod(a.shape[:-2]) == math.prod(batch)
    if (
        not is_one_b
        or not is_whole
        or not all(is_shared(x) or x.shape[-1] == 1 or x.shape[-2] > 1 for x in jax.tree.leaves(leaves))
    ):
        return None
    b = jax.tree.map(lambda x: x.reshape(1, *x.shape[-2:]), b)
    return rows_of(a), b, jax.tree.map(joined, leaves)


def with_one_batch_axis(
    a: jax.Array, b: _Matrix, leaves: _Leaves, batch: Sequence[int]
) -> tuple[jax.Array, _Matrix, _Leaves]:
    """The operands in shape (batch, rows, columns), with `join_rows` where it can; the batch of each is all of it or 1."""
    joined = join_rows(a, b, leaves, batch)
    if joined is not None:
        return joined

    def broadcast(x: jax.Array) -> jax.Array:
        if math.prod(x.shape[:-2]) > 1:
            x = jnp.broadcast_to(x, (*batch, *x.shape[-2:]))
        return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])

    return jax.tree.map(broadcast, (a, b, leaves))
