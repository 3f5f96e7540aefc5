"""Scales, zero points and matrices as the operators of jquant take them."""

import math

import jax
import jax.numpy as jnp

from jquant.packed_matrix import PackedMatrix

LEVEL = "EXTENDED"  # mixed ranks, and types that DirectML does not have


def plain(parameter: jax.Array | None) -> jax.Array | None:
    """A scale or a zero point: a scalar, or a vector with one for each row, column or filter.

    One that differs between the matrices of a batch stays as it is.
    """
    if parameter is None or math.prod(parameter.shape[:-2]) != 1:
        return parameter
    return parameter.reshape(() if parameter.size == 1 else -1)


def matrices(a: jax.Array, b: jax.Array | PackedMatrix) -> tuple[jax.Array, jax.Array | PackedMatrix, tuple[int, ...]]:
    """The operands of a product, vectors made matrices, and the shape of the result, as `numpy.matmul` has it."""
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = a[None] if a.ndim == 1 else a
    b = b[:, None] if b.ndim == 1 and not isinstance(b, PackedMatrix) else b
    return a, b, (*batch, *rows, *columns)
