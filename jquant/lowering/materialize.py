"""Values that are computed once, and not again by each of their readers.

XLA:CPU fuses operations that it takes to be cheap, with everything before them, into each loop that reads their result. An
optimization barrier stores a value even where a single loop reads it. A division, which XLA:CPU takes to be expensive, is
not fused if it has several users.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jquant.lowering import by_platform, recording
from jquant.lowering.bitcast import bitcast
from jquant.lowering.symbolic_sizes import joined


def once(x: jax.Array) -> jax.Array:
    """`x`, computed once and in advance, not again for each element that needs it.

    XLA repeats cheap computations wherever they are read, but does not fuse a division that has two users. So `x` is divided
    by 1, and the quotient is read twice to no effect; LLVM then removes all of that.
    """
    if recording.is_active():
        return x
    if jnp.issubdtype(x.dtype, jnp.floating):
        return bitcast(once(bitcast(x, {4: jnp.int32, 2: jnp.int16}[x.dtype.itemsize])), x.dtype)
    number = _shared_on_cpu(x)
    return number | (number & number.dtype.type(1))


def shared(x: jax.Array) -> jax.Array:
    """`x`, an array of integers, computed once if several loops read it. If one does, it stays part of that loop.

    XLA:CPU repeats cheap operations, with everything before them, in each loop that reads them: in a network, every loop
    would start again at the last product. So `x` is divided by 1, which XLA:CPU takes to be expensive; LLVM removes that.
    """
    return by_platform.elementwise(by_platform.unchanged, x, cpu=_shared_on_cpu, one_cpu=_shared_in_one_dimension)


def _shared_in_one_dimension(x: jax.Array) -> jax.Array:
    """`_shared_on_cpu` in one dimension: XLA:CPU vectorizes loops along the last, which is 7 late in a network on images.

    32-bit integers keep their dimensions: the XLA of jax 0.10 does not compute them in the memory of a product's sums if
    there is a reshape in between.
    """
    if x.ndim < 2 or x.dtype.itemsize > 1:
        return _shared_on_cpu(x)
    return lax.reshape(_shared_on_cpu(lax.reshape(x, (joined(x.shape),))), x.shape)


def _shared_on_cpu(x: jax.Array) -> jax.Array:
    one = lax.full_like(x, 1)
    return lax.div(x, lax.bitwise_or(lax.bitwise_and(x, one), one))


def once_on_cpu(x: jax.Array) -> jax.Array:
    """`once` in programs for a CPU alone."""
    return by_platform.elementwise(by_platform.unchanged, x, cpu=once)


def stored(x: jax.Array) -> jax.Array:
    """`x`, in memory before anything reads it: no operation before it is fused with one after it."""
    return x if recording.is_active() else lax.optimization_barrier(x)


def between_loops(x: jax.Array) -> jax.Array:
    """`stored`, also by the XLA:CPU of jax 0.10, which fuses operations past barriers: there it is `once`, on any version.

    There is no derivative.
    """
    return by_platform.elementwise(stored, x, cpu=once)


def stored_on_cpu(x: jax.Array) -> jax.Array:
    """`stored` in programs for a CPU alone."""
    return by_platform.elementwise(by_platform.unchanged, x, cpu=stored)
