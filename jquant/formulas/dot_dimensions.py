"""The contracted and batch dimensions of a general dot product, and its operands as matrices."""

from typing import NamedTuple

import jax
from jax import lax

from jquant.lowering.symbolic_sizes import joined

Dimensions = tuple[int, ...]


class DotDimensions(NamedTuple):
    """The dimension numbers of `jax.lax.dot_general`. The other dimensions of an operand are free.

    The result has the batch dimensions, then the free ones of `lhs`, then those of `rhs`.
    """

    lhs_contracting: Dimensions
    rhs_contracting: Dimensions
    lhs_batch: Dimensions
    rhs_batch: Dimensions

    @property
    def numbers(self) -> tuple[tuple[Dimensions, Dimensions], tuple[Dimensions, Dimensions]]:
        """As `jax.lax.dot_general` takes them."""
        return (self.lhs_contracting, self.rhs_contracting), (self.lhs_batch, self.rhs_batch)

    def in_order_of_lhs(self) -> "DotDimensions":
        """A product with its sums in the order in which the elements of `lhs` are stored."""
        pairs = sorted(zip(self.lhs_contracting, self.rhs_contracting, strict=True))
        lhs_contracting, rhs_contracting = zip(*pairs, strict=True) if pairs else ((), ())
        return self._replace(lhs_contracting=lhs_contracting, rhs_contracting=rhs_contracting)


def free(rank: int, *others: Dimensions) -> Dimensions:
    """The dimensions of an operand of this rank that are in none of `others`."""
    return tuple(dimension for dimension in range(rank) if not any(dimension in dimensions for dimensions in others))


def matrices(x: jax.Array, batch: Dimensions, rows: Dimensions, columns: Dimensions, *, merged: bool = True) -> jax.Array:
    """`x` in shape (*batch, rows, columns). Unless `merged`, the rows keep their dimensions, or get one of size 1."""
    order = (*batch, *rows, *columns)
    x = x if order == tuple(range(x.ndim)) else lax.transpose(x, order)
    first, last = len(batch), len(batch) + len(rows)
    middle = x.shape[first:last] if rows and not merged else (joined(x.shape[first:last]),)
    return reshaped(x, (*x.shape[:first], *middle, joined(x.shape[last:])))


def reshaped(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`x` reshaped to `shape`, or `x` itself if that is its shape."""
    return x if x.shape == shape else x.reshape(shape)
