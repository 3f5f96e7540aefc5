"""Sums of double-float numbers that do not depend on their order: in fixed point, with digits that are summed as integers.

A number from 0 to 1 has 60 bits, in 5 digits of 12, or in fewer digits of more bits if few numbers are summed. Each digit is
summed separately over all numbers, in int32, across the devices of a mesh as well. The carries are propagated after that.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import double_float, exact, rounding
from jquant.arithmetic.double_float import DoubleFloat
from jquant.lowering import recording
from jquant.lowering.partitioned import unless_partitioned

_FRACTION_BITS = 60
_DIGIT_BITS = 20, 15, 12
_SUM_BITS = 31
LARGEST_COUNT = 2 ** (_SUM_BITS - _DIGIT_BITS[-1]) - 1
"""How many numbers may be summed: the first digit of 1 is 2**12, and the sums are less than 2**31."""


def digit_bits(count: int) -> int:
    """The number of bits per digit in a sum of `count` numbers."""
    return next(bits for bits in _DIGIT_BITS if count < 2 ** (_SUM_BITS - bits))


def digits(x: DoubleFloat, bits: int) -> list[jax.Array]:
    """Numbers from 0 to 1, rounded to 60 bits, as integers between ``-2**bits`` and ``2**bits``."""
    integers = []
    for _ in range(_FRACTION_BITS // bits):
        high, low = (part * jnp.full_like(part, 2**bits) for part in x)  # exact
        digit = rounding.round_half_even(high)
        integers.append(rounding.integer(digit))
        x = double_float.fast_two_sum(high - digit, low)
    return integers


def summed(digits: Sequence[jax.Array], axis: int) -> Sequence[jax.Array]:
    """The sum of each digit along an axis, which keeps a size of 1."""
    if recording.is_active():  # ONNX has no reduction of several arrays
        return [jnp.sum(x, axis, jnp.int32, keepdims=True) for x in digits]
    from_end = axis - digits[0].ndim
    at_once, stacked = (functools.partial(function, from_end) for function in (_summed_at_once, _summed_stacked))
    return unless_partitioned(at_once, stacked, *digits)


def _summed_at_once(axis: int, *digits: jax.Array) -> list[jax.Array]:
    """By a single reduction, into which XLA:CPU fuses the digits; it would materialise them for several reductions."""
    dimension = digits[0].ndim + axis
    zeros = (np.int32(0),) * len(digits)
    sums = lax.reduce(digits, zeros, lambda a, b: tuple(map(lax.add, a, b)), (dimension,))
    return [lax.expand_dims(x, (dimension,)) for x in sums]


def _summed_stacked(axis: int, *digits: jax.Array) -> list[jax.Array]:
    """By a single sum of one array, which takes one collective where a mesh splits it."""
    return list(jnp.sum(jnp.stack(digits), axis, jnp.int32, keepdims=True))


def value(sums: Sequence[jax.Array], bits: int) -> DoubleFloat:
    """The sum, 1 or more, of numbers whose digits have these sums."""
    first, *others = sums
    mask = np.int32(2**bits - 1)
    carry, fraction = jnp.zeros_like(first), []
    for digit in reversed(others):
        fraction.insert(0, (digit + carry) & mask)
        carry = (digit + carry) >> bits
    first = first + carry
    fraction.insert(0, first & mask)
    # Of the bits after the point, the first 48, in two numbers of 24; the others only contribute their carry.
    parts = first >> bits, _field(fraction, bits, 0), _field(fraction, bits, 24)
    integral, upper, lower = (part.astype(jnp.float32) for part in parts)
    scale = functools.partial(jnp.full_like, integral)
    high, low = double_float.fast_two_sum(integral, exact.product(upper, scale(2.0**-24)))
    return double_float.fast_two_sum(high, low + exact.product(lower, scale(2.0**-48)))


def _field(digits: Sequence[jax.Array], bits: int, start: int) -> jax.Array:
    """The 24 bits from bit `start` on of a number whose digits have `bits` bits each, none of them negative."""
    field = jnp.zeros_like(digits[0])
    for index, digit in enumerate(digits):
        shift = start + 24 - (index + 1) * bits
        if -bits < shift < 24:
            field |= digit << shift if shift >= 0 else digit >> -shift
    return field & np.int32(2**24 - 1)
