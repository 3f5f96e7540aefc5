"""The bits of an array, read as numbers of another type: no other module of this package calls `bitcast_convert_type`.

XLA's constant folding takes the elements of a `bitcast_convert` in the order in which they are in memory, whatever the
layouts of operand and result are. The layouts differ if XLA has moved a transposition past the operation, in the same round
of simplifications in which its operand becomes a constant; then the elements end up in the wrong places. XLA moves a
transposition past an operation only if its other operands are transposed alike, or are constants. So `bitcast` reads the
result of an operation on the array and on a function of the array, past which XLA moves nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.lowering import recording


def bitcast(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """`x` with its bits read as numbers of `dtype`.

    If `dtype` is narrower, the result has one dimension more. XLA cannot see that the bits stay the same. Floats of 8 and
    4 bits that the same program computes are stored before they are read, by XLA:CPU from jax 0.12 on.
    """
    dtype = jnp.dtype(dtype)
    if x.dtype == dtype:
        return x
    if recording.is_active() and not (_is_integer(x.dtype) and _is_integer(dtype)):
        return lax.bitcast_convert_type(x, dtype)
    if _width(x.dtype) != _width(dtype) or (not _is_integer(x.dtype) and _width(x.dtype) <= 8):
        # A change of width moves data, for which XLA ends a loop anyway. A `select` of floats of 8 and 4 bits would not do:
        # XLA:CPU computes it in a wider type, which LLVM does not remove.
        return lax.bitcast_convert_type(lax.optimization_barrier(x), dtype)
    if not _is_integer(x.dtype):
        return lax.bitcast_convert_type(_unmoved_float(x), dtype)
    if _is_integer(dtype):
        return lax.convert_element_type(x, dtype)  # modulo 2**bits
    return lax.bitcast_convert_type(_unmoved_integer(x), dtype)


def bitcast_unguarded(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """`bitcast` for an `x` that is not the result of a transposition.

    That holds in the bodies of kernels and of reductions, for the result of a clamp or of a seal, and for whatever was
    computed from results of `bitcast` alone.
    """
    return lax.bitcast_convert_type(x, dtype)


def _unmoved_float(x: jax.Array) -> jax.Array:
    """`x`, selected twice by one condition: the result is `x` in any case, which LLVM finds, but not XLA."""
    is_number = lax.eq(x, x)
    return lax.select(is_number, lax.select(is_number, x, lax.full_like(x, 1)), x)


def _unmoved_integer(x: jax.Array) -> jax.Array:
    """`x`, or-ed with its lowest bit: `x` itself, which LLVM finds, but not XLA."""
    return lax.bitwise_or(x, lax.bitwise_and(x, lax.full_like(x, 1)))


def _is_integer(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.integer)


def _width(dtype: np.dtype) -> int:
    return (jnp.iinfo if _is_integer(dtype) else jnp.finfo)(dtype).bits
