"""Sums and logarithms of float32 that have the same bits on every platform."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact, significands

_LN_2 = np.float32(np.log(2))
_ONE = np.int32(1) << 23  # as a significand
_SQUARE_ROOT = np.int32(np.sqrt(2) * _ONE)


def pairwise_sum(x: jax.Array) -> jax.Array:
    """The sum of 2**n numbers: their two halves are added element by element, until one number is left."""
    while x.size > 1:
        x = exact.sum(*jnp.split(x, 2))
    return x[0]


def logarithm(x: jax.Array) -> jax.Array:
    """``log(x)`` of positive normal numbers, to within 2 ulp.

    As ``log(2**e * m) = e * log(2) + 2 * atanh(s)`` with ``s = (m - 1) / (m + 1)``, where m is from sqrt(1/2) to sqrt(2).
    """
    biased, significand = significands.decompose(x)
    is_upper = (significand > _SQUARE_ROOT).astype(jnp.int32)
    m = significands.assemble(jnp.zeros_like(biased), 127 - is_upper, significand)
    one = jnp.ones_like(m)
    s = exact.quotient(m - one, exact.sum(m, one))
    square = exact.product(s, s)
    series = jnp.zeros_like(s)
    for power in range(9, 2, -2):
        series = exact.product(exact.sum(series, jnp.full_like(s, 1 / power)), square)
    log_m = 2 * exact.sum(s, exact.product(s, series))
    exponent = (biased - 127 + is_upper).astype(jnp.float32)
    return exact.sum(exact.product(exponent, jnp.full_like(s, _LN_2)), log_m)
