"""The product with weights of few bits: on CPUs and GPUs without all weights as floats."""

import functools
from collections.abc import Callable

import jax
import numpy as np
from jax import lax

from jquant.arithmetic import exact
from jquant.kernels import implementations
from jquant.kernels.native import weight_only as native
from jquant.kernels.weight_only import dense, on_cpu, on_gpu
from jquant.kernels.weights import Weights, batch_rank
from jquant.lowering.partitioned import unless_partitioned

_Multiply = Callable[[jax.Array, Weights, np.dtype], jax.Array]


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

    def of_leaves(multiply: _Multiply) -> Callable[..., tuple[jax.Array]]:
        def function(*leaves: jax.Array) -> tuple[jax.Array]:
            a, weights = tree.unflatten(leaves)
            return (multiply(a, weights, dtype),)

        return function

    at_once, in_parts, on_this_cpu, by_sums = map(of_leaves, (_at_once, _in_parts, _on_this_cpu, _by_sums))
    (result,) = unless_partitioned(at_once, at_once, *leaves, on_cpu=in_parts, on_this_cpu=on_this_cpu, on_gpu=by_sums)
    return result


def _at_once(a: jax.Array, weights: Weights, dtype: np.dtype) -> jax.Array:
    return exact.seal(dense.matmul(a, weights, dtype))


def _in_parts(a: jax.Array, weights: Weights, dtype: np.dtype) -> jax.Array:
    return exact.seal(on_cpu.matmul(a, weights, dtype))


def _by_sums(a: jax.Array, weights: Weights, dtype: np.dtype) -> jax.Array:
    return exact.seal(on_gpu.matmul(a, weights, dtype))


def _on_this_cpu(a: jax.Array, weights: Weights, dtype: np.dtype) -> jax.Array:
    """In compiled code, where that is the default; its result needs no seal, because XLA cannot look into the call."""
    is_native = implementations.is_native_default()
    multiply = implementations.unless_declined(native.matmul, _in_parts) if is_native else _in_parts
    return multiply(a, weights, dtype)


@matmul.defjvp
def _matmul_jvp(dtype, primals, tangents):
    _, tangent = jax.jvp(lambda a, weights: dense.matmul(a, weights, dtype), primals, tangents)
    return matmul(*primals, dtype), tangent
