"""The Walsh-Hadamard transform of blocks: stages of sums and differences, whose order is part of the formula.

XLA has no butterflies: a loop computes each of its results by itself. So a loop does three stages, in which each result is
the root of a tree with eight leaves, and stores what it has computed. With fewer stages, more loops would read and write
everything; with more, the trees would grow, and with a single loop for all stages, each result would read its whole block.

Between the loops, the array keeps one shape, with a dimension for the stages of each loop: XLA:CPU does not vectorize a loop
that ends with a reshape.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact
from jquant.arithmetic.broadcasting import elementwise
from jquant.lowering import materialize

_STAGES = 3  # of a loop, at most


def transform(x: jax.Array, axis: int, block_size: int) -> jax.Array:
    """The transform of each block of `x`, in its dtype, along an `axis` that is counted from the end.

    Sums need no seals here, and neither does the scaling by a power of two: no products but exact ones are near them, so that
    a compiler that contracts one gives the same bits. The operand is sealed against the caller's products.
    """
    if block_size == 1:
        return exact.narrow(exact.widen(x), x.dtype)
    stages = _stages_of_loops(block_size.bit_length() - 1)
    first = x.ndim + axis
    blocks = x.shape[axis] // block_size
    split = *x.shape[:first], blocks, *(2**count for count in reversed(stages)), *x.shape[first + 1 :]
    sums = exact.widen(lax.reshape(materialize.stored(x), split))
    for loop, count in enumerate(stages[:-1]):
        sums = materialize.between_loops(_butterflies(sums, first + len(stages) - loop, count))
    sums = _butterflies(sums, first + 1, stages[-1])
    scaled = lax.mul(sums, lax.full_like(sums, scale(block_size)))
    return lax.reshape(materialize.between_loops(exact.narrow(scaled, x.dtype)), x.shape)


def scale(block_size: int) -> np.float32:
    """The power of two that makes the transform orthonormal, or shorter by the square root of 2."""
    return np.float32(2.0 ** -(block_size.bit_length() // 2))


def _stages_of_loops(stages: int) -> list[int]:
    """How many stages each loop has: as few loops as possible, and as even as possible."""
    loops = -(-stages // _STAGES)
    return [(stages + loops - 1 - loop) // loops for loop in range(loops)]


def _butterflies(x: jax.Array, dimension: int, stages: int) -> jax.Array:
    """The stages among the ``2**stages`` elements of a dimension: first those with the shortest distance."""
    shape = [2**stages if d == dimension else 1 for d in range(x.ndim)]
    number = lax.broadcasted_iota(jnp.int32, shape, dimension)
    terms = [lax.slice_in_dim(x, i, i + 1, axis=dimension) for i in range(2**stages)]
    for stage in range(stages):
        # A sign that is computed rather than selected or stored lets XLA:CPU vectorize. The product with it is exact.
        sign = (1 - 2 * ((number >> stage) & 1)).astype(jnp.float32)
        pairs = zip(terms[::2], terms[1::2], strict=True)
        terms = [elementwise(lax.add, even, elementwise(lax.mul, sign, odd)) for even, odd in pairs]
    return terms[0]
