"""The dimensions of two operands of any rank that a product contracts, and the equivalent matrix product."""

import math
from typing import NamedTuple

import jax
from jax import lax

Dimensions = tuple[int, ...]


class DotDimensions(NamedTuple):
    """What `jax.lax.dot_general` calls the dimension numbers. The dimensions of an operand not named here are free.

    The result has the batch dimensions, then the free ones of `lhs`, then those of `rhs`.
    """

    lhs_contracting: Dimensions
    rhs_contracting: Dimensions
    lhs_batch: Dimensions
    rhs_batch: Dimensions

    @property
    def numbers(self) -> tuple[tuple[Dimensions, Dimensions], tuple[Dimensions, Dimensions]]:
        """In JAX's form."""
        return (self.lhs_contracting, self.rhs_contracting), (self.lhs_batch, self.rhs_batch)

    def in_order_of_lhs(self) -> "DotDimensions":
        """The same product, with the sum in the order in which the elements of `lhs` are stored."""
        pairs = sorted(zip(self.lhs_contracting, self.rhs_contracting, strict=True))
        return self._replace(lhs_contracting=tuple(one for one, _ in pairs), rhs_contracting=tuple(two for _, two in pairs))


def free(rank: int, *others: Dimensions) -> Dimensions:
    """Those of `rank` dimensions that are in none of the others."""
    return tuple(dimension for dimension in range(rank) if not any(dimension in group for group in others))


def matrices(x: jax.Array, batch: Dimensions, rows: Dimensions, columns: Dimensions, *, merged: bool = True) -> jax.Array:
    """`x` in shape (*batch, rows, columns). If not `merged`, the rows keep their dimensions, and have at least one."""
    order = (*batch, *rows, *columns)
    x = x if order == tuple(range(x.ndim)) else lax.transpose(x, order)
    first, last = len(batch), len(batch) + len(rows)
    middle = x.shape[first:last] if rows and not merged else (math.prod(x.shape[first:last]),)
    return reshaped(x, (*x.shape[:first], *middle, math.prod(x.shape[last:])))


def reshaped(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`x` in that shape; unchanged if it has it."""
    return x if x.shape == shape else x.reshape(shape)
