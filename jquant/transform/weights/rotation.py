"""The rotation of the inputs and of the rows of weights by `hadamard_transform`."""

import jax
import jax.numpy as jnp

from jquant.operators.hadamard_transform import hadamard_transform


def of_input(x: jax.Array) -> jax.Array:
    """The channels of an input, its last dimension, rotated, in the type of `x`."""
    return hadamard_transform(x)


def of_weights(matrix: jax.Array) -> jax.Array:
    """The rows of float32 weights (..., K, N), rotated, so that the product with a rotated input is that with the input."""
    rotated = hadamard_transform(matrix, axis=-2)
    # The transform of the transform is the identity or, for blocks of 2, 8, 32, ... rows, half of it.
    largest_block = matrix.shape[-2] & -matrix.shape[-2]
    return rotated * jnp.float32(1 if largest_block.bit_length() % 2 else 2)


def undone(matrix: jax.Array) -> jax.Array:
    """The inverse of `of_weights`, but for rounding."""
    return hadamard_transform(matrix, axis=-2)


def of_products(products: jax.Array) -> jax.Array:
    """X^T X of rotated inputs, from X^T X of the inputs, (..., K, K)."""
    return hadamard_transform(hadamard_transform(products), axis=-2)
