"""The exponential function of nonpositive float32 numbers, to about 2**-45 and the same on every platform.

The platforms' own float32 functions differ, and are off by some ulps. This one costs a few hundred operations per number:
it is for the 256 values of an 8-bit type, and for TPUs, which look up values more slowly than they compute them.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import double_float, exact, lookup, rounding, significands
from jquant.arithmetic.double_float import DoubleFloat
from jquant.lowering import recording

_LN2 = Fraction("0.69314718055994530941723212145817656807550013436026")


def _float32_terms(value: Fraction, *bits: int) -> np.ndarray:
    """Float32 numbers whose sum approximates `value`, each with as many bits as `bits` says."""
    parts = []
    for count in bits:
        mantissa, exponent = math.frexp(value)
        part = np.ldexp(np.float32(round(math.ldexp(mantissa, count))), exponent - count)
        parts.append(part)
        value -= Fraction(float(part))
    return np.array(parts, np.float32)


# The products of an 8-bit integer and either of the first two are exact.
_LN2_PARTS = _float32_terms(_LN2, 16, 16, 24)
# 1 / n!, from the last term of the series to the first.
_COEFFICIENTS = np.stack([_float32_terms(Fraction(1, math.factorial(n)), 24, 24) for n in range(13, -1, -1)])
_POWERS = np.append(np.float32(0), np.ldexp(np.float32(1), np.arange(-126, 1)))  # from the one that counts as 0 on


class Exponential(NamedTuple):
    """``significand * power``: the significand from 0.7 to 1.42, and a power of two, which is 0 below 2**-126."""

    significand: DoubleFloat
    power: jax.Array


def exponential(x: jax.Array) -> Exponential:
    """``exp(x)`` of float32 numbers ``x <= 0``; NaN stays NaN. Its derivative is 0, as for integers.

    Reduced to ``exp(r) * 2 ** k`` with ``abs(r) <= log(2) / 2``, for which 14 terms of the Taylor series suffice.
    """
    x = lax.max(lax.stop_gradient(x), lax.full_like(x, -128))
    k = rounding.round_half_even(exact.product(x, lax.full_like(x, 1 / math.log(2))))
    multiples = [exact.product(k, lax.full_like(k, part)) for part in _LN2_PARTS]
    # The first difference is exact, because the numbers are close to each other.
    reduced = double_float.two_sum(x - multiples[0], -multiples[1])
    reduced = double_float.add(reduced, double_float.widen(-multiples[2]))

    def term(partial: DoubleFloat, coefficient: jax.Array) -> tuple[DoubleFloat, None]:
        high, low = (jnp.broadcast_to(part, x.shape) for part in coefficient)
        return double_float.add(double_float.multiply(partial, reduced), DoubleFloat(high, low)), None

    if recording.is_active():  # without a loop that a model would have
        partial = double_float.widen(lax.full_like(x, 0))
        for coefficient in _COEFFICIENTS:
            partial, _ = term(partial, coefficient)
        return Exponential(partial, _power_of_two(k))
    # A loop over the terms compiles quickly, but it stores its sums in each step, which takes long for a whole tensor.
    unroll = 1 if x.shape == (256,) else len(_COEFFICIENTS)
    zero = double_float.widen(lax.full_like(x, 0))
    significand, _ = lax.scan(term, zero, jnp.asarray(_COEFFICIENTS), unroll=unroll)
    return Exponential(significand, _power_of_two(k))


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """``2 ** exponent``, for integers up to 0 in float32; 0 below -126."""
    normal = exponent >= lax.full_like(exponent, -126)
    if recording.is_active():  # looked up in place of being made of bits
        return lookup.look_up(jnp.asarray(_POWERS), lax.max(exponent, lax.full_like(exponent, -127)).astype(jnp.int32) + 127)
    power = significands.power_of_two(lax.max(exponent, lax.full_like(exponent, -126)).astype(jnp.int32))
    return lax.select(normal, power, lax.full_like(exponent, 0))


def scaled(x: jax.Array, power: jax.Array) -> jax.Array:
    """``x * power``; 0 if that is subnormal."""
    value = exact.product(x, power)
    return lax.select(lax.abs(value) < jnp.finfo(jnp.float32).tiny, lax.full_like(value, 0), value)
