"""Sums of float32 pairs that no order changes: in fixed point, by digits that are summed as integers.

A number from 0 to 1 has 5 digits of 12 bits. The digits of different numbers are summed apart, in int32, and so are those
of the parts that a mesh makes of an array; the carries come after that.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import double_float, exact
from jquant.arithmetic.double_float import Pair

_BITS, _COUNT = 12, 5
_MASK = np.int32(2**_BITS - 1)
LARGEST_COUNT = 2 ** (31 - _BITS) - 1
"""How many numbers may be summed: the first digit of 1 is 2**12, and the sums are less than 2**31."""


def digits(x: Pair) -> jax.Array:
    """Numbers from 0 to 1, rounded to 60 bits, in a last dimension of 5 integers between -2**12 and 2**12."""

    def step(rest: Pair, _: None) -> tuple[Pair, jax.Array]:
        high, low = (exact.product(part, jnp.full_like(part, 2**_BITS)) for part in rest)
        digit = exact.round_half_even(high)
        return double_float.ordered_sum(high - digit, low), digit.astype(jnp.int32)

    # A loop, for XLA would compute the digits anew for each number that is looked up in a table of them.
    _, found = lax.scan(step, x, length=_COUNT)
    return jnp.moveaxis(found, 0, -1)


def value(sums: jax.Array) -> Pair:
    """The number, 1 or more, whose digits have these sums."""
    first, *others = (sums[..., index] for index in range(_COUNT))
    carry, kept = jnp.zeros_like(first), []
    for digit in reversed(others):
        kept.append((digit + carry) & _MASK)
        carry = (digit + carry) >> _BITS
    first = first + carry
    _, fourth, third, second = kept  # the fifth is there for its carry
    parts = first >> _BITS, (first & _MASK) << _BITS | second, third << _BITS | fourth
    whole, upper, lower = (part.astype(jnp.float32) for part in parts)
    scale = functools.partial(jnp.full_like, whole)
    high, low = double_float.ordered_sum(whole, exact.product(upper, scale(2.0 ** (-2 * _BITS))))
    return double_float.ordered_sum(high, low + exact.product(lower, scale(2.0 ** (-4 * _BITS))))
