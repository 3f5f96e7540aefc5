"""The bits of an array, read as numbers of another type: no other module of this package calls `bitcast_convert_type`.

XLA's constant folding takes the elements of a `bitcast_convert` in the order in which they are in memory, whatever the
layouts of operand and result are. They differ once XLA has moved a transposition past the operation, in the same round of
simplifications in which its operand becomes a constant; then the elements end up in the wrong places. XLA moves one past
an operation whose operands are all transposed alike, or are constants. So `bitcast` reads what an operation made of the
array and of a function of the array: past such an operation XLA moves nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def bitcast(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """`x` with its bits read as numbers of `dtype`.

    If `dtype` is narrower, the result has one dimension more. XLA cannot see that the bits stay the same. Floats of 8 and
    4 bits that the same program computes are stored before they are read, by XLA:CPU from jax 0.12 on.
    """
    dtype = jnp.dtype(dtype)
    if x.dtype == dtype:
        return x
    if _width(x.dtype) != _width(dtype) or (not _is_integer(x.dtype) and _width(x.dtype) <= 8):
        # Wider and narrower numbers are a move, for which a loop ends anyway. A `select` of floats of 8 and 4 bits is no
        # way: XLA:CPU computes it in wider ones, which LLVM does not remove.
        return lax.bitcast_convert_type(lax.optimization_barrier(x), dtype)
    if not _is_integer(x.dtype):
        return lax.bitcast_convert_type(_unmoved_float(x), dtype)
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


def _unmoved_integer(x: jax.Array) -> jax.Array:
    """`x`, together with its lowest bit, which only LLVM finds to be in it already."""
    return lax.bitwise_or(x, lax.bitwise_and(x, lax.full_like(x, 1)))


def _is_integer(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.integer)


def _width(dtype: np.dtype) -> int:
    return (jnp.iinfo if _is_integer(dtype) else jnp.finfo)(dtype).bits
