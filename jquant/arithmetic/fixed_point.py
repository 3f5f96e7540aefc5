"""Sums of double-float numbers that do not depend on the order: in fixed point, with digits that are summed as integers.

A number from 0 to 1 has 60 bits, in 5 digits of 12, or in fewer digits of more bits if few numbers are summed. Each digit is
summed separately over all numbers, in int32, and over the parts into which a mesh splits an array. The carries come after
that.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import double_float, exact, rounding
from jquant.arithmetic.double_float import DoubleFloat
from jquant.lowering.partitioned import unless_partitioned

_FRACTION_BITS = 60
_DIGIT_BITS = 20, 15, 12
_SUM_BITS = 31
LARGEST_COUNT = 2 ** (_SUM_BITS - _DIGIT_BITS[-1]) - 1
"""How many numbers may be summed: the first digit of 1 is 2**12, and the sums are less than 2**31."""


def digit_bits(count: int) -> int:
    """The number of bits per digit in the sum of so many numbers."""
    return next(bits for bits in _DIGIT_BITS if count < 2 ** (_SUM_BITS - bits))


def digits(x: DoubleFloat, bits: int) -> list[jax.Array]:
    """Numbers from 0 to 1, rounded to 60 bits, as integers between ``-2**bits`` and ``2**bits``."""
    found = []
    for _ in range(_FRACTION_BITS // bits):
        high, low = (part * jnp.full_like(part, 2**bits) for part in x)  # exact
        digit = rounding.round_half_even(high)
        found.append(rounding.integer(digit))
        x = double_float.fast_two_sum(high - digit, low)
    return found


def summed(digits: Sequence[jax.Array], axis: int) -> Sequence[jax.Array]:
    """The sum of each digit along an axis, which keeps a size of 1."""
    at_once, apart = (functools.partial(form, axis - digits[0].ndim) for form in (_summed_at_once, _summed_apart))
    return unless_partitioned(at_once, apart, *digits)


def _summed_at_once(axis: int, *digits: jax.Array) -> list[jax.Array]:
    """By a single reduction: XLA:CPU fuses the digits into it, but materializes them for several."""
    from_front = digits[0].ndim + axis
    zeros = (np.int32(0),) * len(digits)
    found = lax.reduce(digits, zeros, lambda a, b: tuple(map(lax.add, a, b)), (from_front,))
    return [lax.expand_dims(x, (from_front,)) for x in found]


def _summed_apart(axis: int, *digits: jax.Array) -> list[jax.Array]:
    """By a single sum of one array, which is a single message where a mesh splits it."""
    return list(jnp.sum(jnp.stack(digits), axis, jnp.int32, keepdims=True))


def value(sums: Sequence[jax.Array], bits: int) -> DoubleFloat:
    """The number, 1 or more, whose digits have these sums."""
    first, *others = sums
    mask = np.int32(2**bits - 1)
    carry, fraction = jnp.zeros_like(first), []
    for digit in reversed(others):
        fraction.insert(0, (digit + carry) & mask)
        carry = (digit + carry) >> bits
    first = first + carry
    fraction.insert(0, first & mask)
    # The 48 bits after the point that count, in two numbers of 24. The others were there for their carry.
    parts = first >> bits, _field(fraction, bits, 0), _field(fraction, bits, 24)
    whole, upper, lower = (part.astype(jnp.float32) for part in parts)
    scale = functools.partial(jnp.full_like, whole)
    high, low = double_float.fast_two_sum(whole, exact.product(upper, scale(2.0**-24)))
    return double_float.fast_two_sum(high, low + exact.product(lower, scale(2.0**-48)))


def _field(digits: Sequence[jax.Array], bits: int, start: int) -> jax.Array:
    """The 24 bits from `start` on of a number with so many bits per digit, none of them negative."""
    field = jnp.zeros_like(digits[0])
    for index, digit in enumerate(digits):
        shift = start + 24 - (index + 1) * bits
        if -bits < shift < 24:
            field |= digit << shift if shift >= 0 else digit >> -shift
    return field & np.int32(2**24 - 1)
