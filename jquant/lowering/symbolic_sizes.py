"""Sizes that are symbolic in a program for `jax.export`, of which JAX must be able to prove that none is negative."""

import math
from collections.abc import Sequence

import jax.core


def joined(sizes: Sequence[int]) -> int:
    """The size of dimensions that a reshape joins: the product of theirs.

    JAX cannot prove of (h - 2) * (w - 2) that it is not negative, though it can of both factors, and refuses to reshape to
    such a size. So that size is the maximum of the product and 0, unless JAX can prove it.
    """
    size = math.prod(sizes)
    return size if isinstance(size, int) else jax.core.max_dim(size, 0)
