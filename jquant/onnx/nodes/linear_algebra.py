"""Products of matrices, determinants and Einsum."""

import jax.numpy as jnp

from jquant.onnx.running.registry import converter


@converter("MatMul", since=1)
def matmul(a, b):
    return jnp.matmul(a, b)


@converter("Gemm", since=7)
def gemm(a, b, c=None, *, alpha, beta, transA, transB):
    """``alpha * A @ B + beta * C``"""
    product = jnp.matmul(a.T if transA else a, b.T if transB else b)
    product = product if alpha == 1 else product * jnp.asarray(alpha, product.dtype)
    if c is None:
        return product
    return product + (c if beta == 1 else c * jnp.asarray(beta, c.dtype))


@converter("Det", since=11)
def determinant(x):
    return jnp.linalg.det(x)


@converter("Einsum", since=12)
def einsum(*inputs, equation):
    return jnp.einsum(equation, *inputs)
