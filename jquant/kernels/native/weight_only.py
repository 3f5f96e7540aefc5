"""The product of floats and weights of few bits by the library."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant.kernels.native.shared_library import WEIGHT_ONLY, require
from jquant.kernels.weights import Weights, as_one_matrix
from jquant.packed.block_matrix import Layout, PackedBlockMatrix


class _Operands(NamedTuple):
    """A matrix of weights as native/src/weight_only.h defines it."""

    data: jax.Array
    scale: jax.Array
    zero_point: jax.Array | None
    minimum: jax.Array | None
    columns: int
    bits: int
    block_size: int
    offset: int


def matmul(a: jax.Array, weights: Weights, dtype: np.dtype) -> jax.Array:
    """`dense.matmul`, without holding all weights as floats.

    Products are fused with their additions, in an order that depends on the number of rows of `a` and on the instruction
    set, but not on the number of threads:

    - For more than 4 rows, the weights are converted, and each 256 products in a row are added one after another; then
      these sums are.
    - For up to 4 rows, packed weights stay integers less their zero points. Up to 32 of their products in a block are added
      one after another, and the scale multiplies the total of these. (Weights with a minimum are converted.)
    - For up to 4 rows, weights as onnxruntime stores them are converted, and each lane of a vector adds the products of its
      words of 32 bits; then the lanes are added.

    Raises:
      NotImplementedError: the library cannot be used; `dtype` is not float32; there are several matrices of weights, or a
        scale for each row of the weights; or sizes are symbolic.
    """
    function = require(WEIGHT_ONLY, *a.shape, *(size for x in jax.tree.leaves(weights) for size in x.shape))
    one_matrix = as_one_matrix(a, weights)
    if dtype != jnp.float32 or one_matrix is None:
        raise NotImplementedError("implementation native needs float32 and a single matrix of weights")
    rows, matrix = one_matrix
    of_weights = _operands(matrix)
    named = {"zero_point": of_weights.zero_point, "minimum": of_weights.minimum}
    named = {role: array for role, array in named.items() if array is not None}
    call = jax.ffi.ffi_call(function.target, jax.ShapeDtypeStruct((rows.shape[0], of_weights.columns), jnp.float32))
    attributes = {name: np.int64(getattr(of_weights, name)) for name in ("bits", "block_size", "offset")}
    result = call(rows, of_weights.data, of_weights.scale, *named.values(), **attributes, roles=" ".join(named))
    return result.reshape(*a.shape[:-1], of_weights.columns)


def _operands(matrix: Weights) -> _Operands:
    if isinstance(matrix, PackedBlockMatrix):
        matrix = matrix.n_minor()
        bits = 4 if matrix.layout == Layout.WORDS else 8
        arrays = matrix.scale, matrix.zero_point, matrix.minimum
        return _Operands(matrix.data, *arrays, matrix.shape[-1], bits, matrix.block_size, matrix.offset)
    if matrix.group_size != matrix.block_size:
        raise NotImplementedError("implementation native needs scales of blocks")
    offset = 2 ** (matrix.bits - 1) if matrix.zero_point is None else 0
    arrays = matrix.scale, matrix.zero_point, None
    return _Operands(matrix.data, *arrays, matrix.data.shape[0], matrix.bits, matrix.block_size, offset)
