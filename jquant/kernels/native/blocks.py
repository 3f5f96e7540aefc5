"""The product with block scales by the library."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.kernels import epilogue as epilogues
from jquant.kernels.batch import with_one_batch_axis
from jquant.kernels.epilogue import Epilogue
from jquant.kernels.native.epilogue import fused_scale, nothing
from jquant.kernels.native.shared_library import BLOCK_PRODUCT, CODED_BLOCK_PRODUCT, require
from jquant.packed.block_matrix import Layout, PackedBlockMatrix


def block_dot(a: jax.Array, a_zero_point: jax.Array | None, b: PackedBlockMatrix, epilogue: Epilogue = ()) -> jax.Array:
    """The sum of the blocks' contributions, in order, in float32, as `jquant.kernels.block_dot` defines it; the epilogue.

    Args:
      a: int8 or uint8, of shape (..., M, K), in whole blocks.
      a_zero_point: of the dtype of `a`, of shape (..., M, 1) or (..., 1, 1), or None for 0.
      b: of shape (..., K, N), without padding. Batch sizes of 1 broadcast. A K-major layout is transposed in each call.
      epilogue: the steps that follow, on float32, whose arrays have the rank of `a`.

    Raises:
      NotImplementedError: the library cannot be used, or sizes are symbolic.
    """
    b = b.n_minor(may_be_codes=True)
    function = require(CODED_BLOCK_PRODUCT if b.layout == Layout.CODES else BLOCK_PRODUCT, *a.shape, *b.shape)
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    m, n = a.shape[-2], b.shape[-1]
    first = fused_scale(epilogue)
    # Not if jax.vmap maps nothing but the epilogue: the product would be computed for each of its arrays.
    if any(jnp.broadcast_shapes(batch, x.shape[:-2]) != batch for x in first.arrays):
        first = nothing(np.float32, epilogue)
    a, b, (a_zero_point, arrays) = with_one_batch_axis(a, b, (a_zero_point, first.arrays), batch)
    named = {"a_zero_point": a_zero_point, "b_zero_point": b.zero_point, "minimum": b.minimum}
    named = {role: array for role, array in named.items() if array is not None}
    named |= dict(zip(first.roles, arrays, strict=True))
    shape = *jnp.broadcast_shapes(a.shape[:1], b.data.shape[:1]), a.shape[1], n
    call = jax.ffi.ffi_call(function.target, jax.ShapeDtypeStruct(shape, first.dtype))
    attributes = {"block_size": np.int64(b.block_size), "offset": np.int64(b.offset), "roles": " ".join(named)}
    result = call(a, b.data, b.scale, *named.values(), **attributes).reshape(*batch, m, n)
    return epilogues.apply(first.rest, result) if first.rest else result
