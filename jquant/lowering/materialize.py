"""Values that are computed once, and not again by each of their readers.

XLA:CPU fuses what it takes to be cheap, with all that leads to it, into each loop that reads it. A barrier stores a value,
even where a single loop reads it. A division, which XLA takes to be expensive, ends a loop only if it has several users.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jquant.lowering import by_platform
from jquant.lowering.bitcast import bitcast


def once(x: jax.Array) -> jax.Array:
    """`x`, computed once and in advance, not again for each element that needs it.

    XLA repeats cheap computations wherever they are read. It ends a loop at a division whose result is read twice, even by 1
    and to no effect; LLVM then removes all of it.
    """
    if jnp.issubdtype(x.dtype, jnp.floating):
        return bitcast(once(bitcast(x, {4: jnp.int32, 2: jnp.int16}[x.dtype.itemsize])), x.dtype)
    number = _shared_on_cpu(x)
    return number | (number & number.dtype.type(1))


def shared(x: jax.Array) -> jax.Array:
    """`x`, an array of integers, computed once if several loops read it. If one does, it stays part of that loop.

    XLA:CPU repeats what it takes to be cheap, with all that leads to it, in each loop that needs it: in a network, every
    loop would start again at the last product. It takes a division to be expensive; LLVM then removes this one, by 1.
    """
    return by_platform.elementwise(by_platform.unchanged, x, cpu=_shared_on_cpu)


def _shared_on_cpu(x: jax.Array) -> jax.Array:
    one = lax.full_like(x, 1)
    return lax.div(x, lax.bitwise_or(lax.bitwise_and(x, one), one))


def once_on_cpu(x: jax.Array) -> jax.Array:
    """`once` in programs for a CPU alone."""
    return by_platform.elementwise(by_platform.unchanged, x, cpu=once)


def stored(x: jax.Array) -> jax.Array:
    """`x`, in memory before anything reads it. No operation before it is fused with one behind it."""
    return lax.optimization_barrier(x)


def stored_on_cpu(x: jax.Array) -> jax.Array:
    """`stored` in programs for a CPU alone."""
    return by_platform.elementwise(by_platform.unchanged, x, cpu=stored)
