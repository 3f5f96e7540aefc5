"""The integer product by the library."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.kernels import epilogue as epilogues
from jquant.kernels.batch import with_one_batch_axis
from jquant.kernels.epilogue import Epilogue
from jquant.kernels.native.epilogue import fused, nothing
from jquant.kernels.native.library import PRODUCT, require_sizes


def integer_dot(a: jax.Array, b: jax.Array, epilogue: Epilogue = (), *, transpose_b: bool = False) -> jax.Array:
    """``epilogue(a @ b)``, the product in int32.

    Args:
      a: int8 or uint8, which stands for the integers less 128, of shape (..., M, K).
      b: the same, of shape (..., K, N), or (..., N, K) with `transpose_b`. Batch sizes of 1 broadcast.
      epilogue: the steps that follow, whose arrays have the rank of `a`.
      transpose_b: whether `b` is K-major, as packed weights are.

    Raises:
      NotImplementedError: the library cannot be used, or sizes are symbolic.
    """
    require_sizes(*a.shape, *b.shape)
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    m, n = a.shape[-2], b.shape[-2 if transpose_b else -1]
    first = fused(epilogue)
    # Not if jax.vmap maps nothing but the epilogue: the product would be computed for each of its arrays.
    if any(jnp.broadcast_shapes(batch, x.shape[:-2]) != batch for x in first.arrays):
        first = nothing(np.dtype(np.int32), epilogue)
    a, b, arrays = with_one_batch_axis(a, b, first.arrays, batch)
    shape = *jnp.broadcast_shapes(a.shape[:1], b.shape[:1]), a.shape[1], n
    call = jax.ffi.ffi_call(PRODUCT, jax.ShapeDtypeStruct(shape, first.dtype))
    result = call(a, b, *arrays, depth_minor=transpose_b, epilogue=" ".join(first.roles)).reshape(*batch, m, n)
    return epilogues.apply(first.rest, result) if first.rest else result
