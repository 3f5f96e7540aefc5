"""The softmax of floats, whose sum and quotient do not depend on the program around them."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact, fixed_point
from jquant.lowering import materialize


def softmax(x: jax.Array, where: jax.Array) -> jax.Array:
    """``e / sum(e)``, with ``e = exp(x - max(x))``, along the last dimension, of float32; `where` is false, 0.

    The exponential is XLA's. The difference and the quotient are rounded once, and the sum, taken in fixed point, is the
    same in every order. Where a row is false everywhere, all of it is 0.
    """
    highest = jnp.where(where, x, -jnp.inf).max(-1, keepdims=True)
    exponentials = materialize.stored_on_cpu(jnp.where(where, jnp.exp(exact.difference(x, highest)), 0))
    return jnp.where(where, exact.quotient(exponentials, _sum(exponentials)), 0)


def _sum(x: jax.Array) -> jax.Array:
    """The sum of numbers from 0 to 1, each of which is two digits that are summed as integers."""
    bits = fixed_point.digit_bits(x.shape[-1])
    unit = np.float32(2**bits)
    first = (x * unit).astype(jnp.int32)
    second = ((x * unit - first.astype(jnp.float32)) * unit).astype(jnp.int32)  # the products and the difference are exact
    integral, fraction = (total.astype(jnp.float32) / unit for total in fixed_point.summed([first, second], x.ndim - 1))
    return exact.sum(integral, fraction / unit)
