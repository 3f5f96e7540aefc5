"""The product with weights of few bits: in compiled code or in parts on a CPU, and with all weights as floats elsewhere."""

import functools

import jax
import numpy as np
from jax import lax

from jquant.arithmetic import exact
from jquant.kernels import implementations
from jquant.kernels.native import weight_only as native
from jquant.kernels.weight_only import dense, on_cpu
from jquant.kernels.weight_only.weights import Weights, batch_rank
from jquant.lowering.partitioned import unless_partitioned
from jquant.modes import Implementation


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def matmul(a: jax.Array, weights: Weights, dtype: np.dtype) -> jax.Array:
    """``a @ ((integers - zero_point) * scale)``, or ``a @ (integers * scale + minimum)``: float32, of shape (..., M, N).

    The derivative is that of `dense.matmul`, which holds all weights as floats.

    Args:
      a: float32, of shape (..., M, K).
      weights: of shape (..., K, N).
      dtype: float32, or the type that both operands are rounded to first.
    """
    excess = a.ndim - 2 - batch_rank(weights)
    a = lax.expand_dims(a, range(max(-excess, 0)))
    weights = jax.tree.map(lambda x: lax.expand_dims(x, range(max(excess, 0))), weights)
    leaves, tree = jax.tree.flatten((a, weights))

    def multiply_at_once(*leaves: jax.Array) -> tuple[jax.Array]:
        a, weights = tree.unflatten(leaves)
        return (dense.matmul(a, weights, dtype),)

    def multiply_in_parts(*leaves: jax.Array) -> tuple[jax.Array]:
        a, weights = tree.unflatten(leaves)
        return (on_cpu.matmul(a, weights, dtype),)

    def multiply_natively(*leaves: jax.Array) -> tuple[jax.Array]:
        a, weights = tree.unflatten(leaves)
        is_default = implementations.default("cpu") is Implementation.NATIVE
        multiply = implementations.unless_declined(native.matmul, on_cpu.matmul) if is_default else on_cpu.matmul
        return (multiply(a, weights, dtype),)

    (result,) = unless_partitioned(
        multiply_at_once, multiply_at_once, *leaves, on_cpu=multiply_in_parts, on_this_cpu=multiply_natively
    )
    return exact.seal(result)


@matmul.defjvp
def _matmul_jvp(dtype, primals, tangents):
    _, tangent = jax.jvp(lambda a, weights: dense.matmul(a, weights, dtype), primals, tangents)
    return matmul(*primals, dtype), tangent
