"""Functions that are their own transposes: JAX calls them, and never looks into them."""

import jax
import jax.numpy as jnp
import numpy as np
from support.comparison import assert_equal

from jquant.lowering.self_adjoint import self_adjoint

MATRIX = np.float32([[1, 2], [2, 5]])


def product(x: jax.Array, factor: int) -> jax.Array:
    return jax.lax.stop_gradient(factor * x @ MATRIX)  # JAX alone would find no derivative


def function(x: jax.Array) -> jax.Array:
    return self_adjoint(product, x, 3)


def test_derivatives_call_it_again():
    x, dot = np.float32([[1, 2], [3, 4]]), np.float32([[5, 6], [7, 9]])
    assert_equal(function(x), 3 * x @ MATRIX)
    assert_equal(jax.jvp(function, (x,), (dot,)), (3 * x @ MATRIX, 3 * dot @ MATRIX))
    assert_equal(jax.vjp(function, x)[1](dot)[0], 3 * dot @ MATRIX)
    assert_equal(jax.jit(jax.hessian(lambda x: (function(x) ** 2).sum() / 2))(x[0]), 9 * MATRIX @ MATRIX)


def test_mapped_dimensions_come_first():
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    mapped = jax.vmap(jax.vmap(jax.grad(lambda x: (function(x) * x).sum() / 2)), in_axes=2, out_axes=1)
    assert_equal(mapped(x), 3 * np.moveaxis(x, 2, 1) @ MATRIX)


def test_the_type_of_the_result_is_known_without_tracing():
    assert "self_adjoint" in str(jax.make_jaxpr(function)(MATRIX))
    assert jax.eval_shape(function, MATRIX) == jax.ShapeDtypeStruct((2, 2), jnp.float32)
