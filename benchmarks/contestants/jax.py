"""JAX's own products."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contestant import Call, Contestant, Unavailable, dimension_numbers, jitted
from benchmarks.problem import Problem


def _int8(problem: Problem) -> Call:
    dimensions = dimension_numbers(problem)

    def dot(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.int32)

    return Call(jitted(dot, problem.a_int8, problem.b, layers=problem.shape.layers), problem.int8_product)


def _int32(problem: Problem) -> Call:
    def formula(a: jax.Array, b: jax.Array, a_zero_point: jax.Array, b_zero_point: jax.Array) -> jax.Array:
        return (a.astype(jnp.int32) - a_zero_point.astype(jnp.int32)) @ (
            b.astype(jnp.int32) - b_zero_point.astype(jnp.int32)
        )

    return Call(
        jitted(formula, problem.a, problem.b, problem.a_zero_point, problem.b_zero_point, layers=problem.shape.layers),
        problem.product,
    )


def _floating(problem: Problem, dtype: np.dtype) -> Call:
    if problem.shape.cold:
        raise Unavailable("with several layers, only the integers are measured")
    run = jitted(jnp.matmul, problem.a_float.astype(dtype), problem.b_float.astype(dtype), layers=problem.shape.layers)
    # bfloat16 is rounded three times, operands and result; sums are in float32, and lose at most half an ulp a term.
    # Devices may multiply float32 in fewer bits, such as TF32, by default.
    unit = 3 * 2.0**-8 if dtype == jnp.bfloat16 else 2.0**-9
    return Call(run, problem.float_product, (unit + problem.shape.k * 2.0**-24) * problem.float_magnitude)


CONTESTANTS = (
    Contestant("jax-int8", "lax.dot_general, int8 x int8 to int32, no zero points", _int8, "jax"),
    Contestant(
        "jax-int32-formula",
        "(int32(A) - A's zero point) @ (int32(B) - B's zero point) from uint8 x int8, DirectML's formula as written",
        _int32,
        "jax",
    ),
    Contestant("jax-float32", "jnp.matmul, float32", lambda problem: _floating(problem, np.dtype(np.float32)), "jax"),
    Contestant(
        "jax-bfloat16", "jnp.matmul, bfloat16 to bfloat16", lambda problem: _floating(problem, np.dtype(jnp.bfloat16)), "jax"
    ),
)
