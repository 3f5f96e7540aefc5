"""The bits of an array, read as numbers of another type: no other module of this package calls `bitcast_convert_type`.

XLA's constant folding takes the elements of a `bitcast_convert` in the order in which they are in memory, whatever the
layouts of operand and result are. They differ once XLA has moved a transposition past the operation, in the same round of
simplifications in which its operand becomes a constant; then the elements end up in the wrong places. XLA moves one past
an operation whose operands are all transposed alike, or are constants. So `bitcast` reads what an operation made of the
array and of a function of the array: past such an operation XLA moves nothing.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic.partitioned import unless_partitioned


def bitcast(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """`x` with its bits read as numbers of `dtype`.

    If `dtype` is narrower, the result has one dimension more. XLA cannot see that the bits stay the same.
    """
    dtype = jnp.dtype(dtype)
    if x.dtype == dtype:
        return x
    if _width(x.dtype) != _width(dtype):  # a move, which ends a loop anyway, so that a barrier costs nothing
        return lax.bitcast_convert_type(lax.optimization_barrier(x), dtype)
    if not _is_integer(x.dtype):
        unmoved = _unmoved_float if _width(x.dtype) > 8 else _unmoved_narrow_float
        return lax.bitcast_convert_type(unmoved(x), dtype)
    if _is_integer(dtype):
        return lax.convert_element_type(x, dtype)  # modulo 2**bits
    return lax.bitcast_convert_type(_unmoved_integer(x), dtype)


def bitcast_unguarded(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """The same for an `x` that is no transposition.

    So it is in bodies of kernels and of reductions, for the result of a clamp or of a seal, and for what was computed from
    results of `bitcast` alone.
    """
    return lax.bitcast_convert_type(x, dtype)


def _unmoved_float(x: jax.Array) -> jax.Array:
    """`x`, selected twice by one condition: whatever that is, the result is `x`, as only LLVM finds."""
    is_number = lax.eq(x, x)
    return lax.select(is_number, lax.select(is_number, x, lax.full_like(x, 1)), x)


def _unmoved_narrow_float(x: jax.Array) -> jax.Array:
    """`x`, reversed twice, past which XLA moves nothing either. LLVM removes that.

    XLA:CPU would compute a `select` of floats of 8 and 4 bits in wider ones, which LLVM does not remove. Where a reversal
    may communicate or take long, on a mesh and on other platforms, there is a barrier instead.
    """
    long = [dimension for dimension, size in enumerate(x.shape) if not isinstance(size, int) or size > 1]
    if len(long) < 2:
        return x
    twice = functools.partial(_reversed_twice, long[0] - x.ndim)
    (x,) = unless_partitioned(_after_barrier, _after_barrier, lax.stop_gradient(x), on_cpu=twice)
    return x


def _reversed_twice(dimension: int, x: jax.Array) -> tuple[jax.Array]:
    place = (x.ndim + dimension,)
    return (lax.rev(lax.rev(x, place), place),)


def _after_barrier(x: jax.Array) -> tuple[jax.Array]:
    return (lax.optimization_barrier(x),)


def _unmoved_integer(x: jax.Array) -> jax.Array:
    """`x`, together with its lowest bit, which only LLVM finds to be in it already."""
    return lax.bitwise_or(x, lax.bitwise_and(x, lax.full_like(x, 1)))


def _is_integer(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.integer)


def _width(dtype: np.dtype) -> int:
    return (jnp.iinfo if _is_integer(dtype) else jnp.finfo)(dtype).bits
