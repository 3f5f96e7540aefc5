"""Products of matrices, determinants and Einsum."""

import jax.numpy as jnp

from jquant.errors import ModelError
from jquant.onnx.fusing.widened_weights import WEIGHT_ONLY
from jquant.onnx.graphs.graph import JQUANT
from jquant.onnx.running.registry import converter
from jquant.operators.matmul_n_bits import matmul_n_bits
from jquant.packed.block_matrix import PackedBlockMatrix


@converter("MatMul", since=1)
def matmul(a, b):
    return jnp.matmul(a, b)


@converter("Gemm", since=7)
def gemm(a, b, c=None, *, alpha, beta, transA, transB):
    """``alpha * A @ B + beta * C``"""
    return _with_addend(jnp.matmul(a.T if transA else a, b.T if transB else b), c, alpha, beta)


@converter(WEIGHT_ONLY, domain=JQUANT, packs_widened=True)
def matmul_of_widened_weights(
    A, B, scales, zero_points=None, C=None, *, block_size, alpha=1.0, beta=1.0, transA=0
):  # fmt: skip
    """MatMul, or Gemm, by weights that are integers with scales, which they hold."""
    if not isinstance(B, PackedBlockMatrix):
        raise ModelError(f"B is {B.dtype}{list(B.shape)}; it must be a jquant.PackedBlockMatrix, as in the model's params")
    return _with_addend(matmul_n_bits(A.T if transA else A, B), C, alpha, beta)


def _with_addend(product, c, alpha, beta):
    """``alpha * product + beta * c``"""
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
