"""The integer product by the library."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jquant.kernels import epilogue as epilogues
from jquant.kernels.batch import with_one_batch_axis
from jquant.kernels.epilogue import Epilogue
from jquant.kernels.native.epilogue import fused, nothing, takes_scales
from jquant.kernels.native.shared_library import PRODUCT, require
from jquant.kernels.zero_point import NO_ZERO_POINTS, ZeroPoints


def integer_dot(a: jax.Array, b: jax.Array, epilogue: Epilogue = (), *, transpose_b: bool = False) -> jax.Array:
    """``epilogue(a @ b)`` of int8 or uint8, the product in int32; as `multiply`."""
    return multiply(a, b, NO_ZERO_POINTS, epilogue, transpose_b=transpose_b)


def multiply(
    a: jax.Array, b: jax.Array, zero_points: ZeroPoints, epilogue: Epilogue = (), *, transpose_b: bool = False
) -> jax.Array:
    """``epilogue((a - zero_points.a) @ (b - zero_points.b))``, as `integer_dot` defines it.

    Raises:
      NotImplementedError: the library cannot be used, or sizes are symbolic.
    """
    function = require(PRODUCT, *a.shape, *b.shape)
    m, n = a.shape[-2], b.shape[-2 if transpose_b else -1]
    batch = _batch(a, b, zero_points)
    if not takes_scales(function, math.prod((*batch, m, n, a.shape[-1]))):
        zero_points, epilogue = zero_points.prepared(b.dtype), epilogues.prepared(epilogue)
    first = fused(epilogue)
    # Not if jax.vmap maps nothing but the epilogue: the product would be computed for each of its arrays.
    if _batch(a, b, zero_points, first.arrays) != batch:
        first = nothing(np.int32, epilogue)
    a = jnp.broadcast_to(a, (*_batch(a, zero_points.a), *a.shape[-2:]))
    # The library takes no zero point of B for each row: like B, it stays one for the rows that are joined.
    of_b = b, zero_points.b, zero_points.block_sums
    a, of_b, (a_zero_point, of_steps) = with_one_batch_axis(a, of_b, (zero_points.a, first.arrays), batch)
    b, b_zero_point, block_sums = of_b
    named = [("a_zero_point", a_zero_point), ("b_zero_point", b_zero_point), ("block_sums", block_sums)]
    named += zip(first.roles, of_steps, strict=True)
    named = [(role, array) for role, array in named if array is not None]
    shape = *jnp.broadcast_shapes(*(x.shape[:1] for x in (a, b, *(x for _, x in named)))), a.shape[1], n
    call = jax.ffi.ffi_call(function.target, jax.ShapeDtypeStruct(shape, first.dtype))
    arrays = [array for _, array in named]
    result = call(a, b, *arrays, depth_minor=transpose_b, roles=" ".join(role for role, _ in named))
    result = result.reshape(*batch, m, n)
    return epilogues.apply(first.rest, result) if first.rest else result


def _batch(*arrays) -> tuple[int, ...]:
    return functools.reduce(jnp.broadcast_shapes, (x.shape[:-2] for x in jax.tree.leaves(arrays)), ())
