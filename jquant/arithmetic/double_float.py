"""Double-float arithmetic: each number is the unevaluated sum of two float32 numbers.

A pair holds about 48 bits, and its high part is the pair rounded to float32. Every product and every sum that is rounded
is sealed (`exact.seal`), because a compiler would otherwise prove the low parts to be 0. Exact operations, such as those
that compute the low parts and the products of halves, need no seal.
"""

from typing import NamedTuple

import jax
import numpy as np
from jax import lax

from jquant.arithmetic import exact
from jquant.arithmetic.float_bits import bits, from_bits
from jquant.lowering import recording


class DoubleFloat(NamedTuple):
    """``high + low``, where ``high == fl(high + low)``."""

    high: jax.Array
    low: jax.Array


def widen(x: jax.Array) -> DoubleFloat:
    """A float32 as a double-float."""
    return DoubleFloat(x, lax.full_like(x, 0))


def two_sum(a: jax.Array, b: jax.Array) -> DoubleFloat:
    """``a + b``, exactly, by Knuth's 2Sum."""
    high = exact.sum(a, b)
    b_virtual = high - a
    return DoubleFloat(high, (a - (high - b_virtual)) + (b - b_virtual))


def fast_two_sum(a: jax.Array, b: jax.Array) -> DoubleFloat:
    """``a + b``, exactly, by Dekker's Fast2Sum, where ``abs(a) >= abs(b)`` or ``a == 0``."""
    high = exact.sum(a, b)
    return DoubleFloat(high, b - (high - a))


def two_product(a: jax.Array, b: jax.Array) -> DoubleFloat:
    """``a * b``, exactly, by Dekker's product: the products of 12-bit halves are exact."""
    high = exact.product(a, b)
    a_upper, a_lower = _halves(a)
    b_upper, b_lower = _halves(b)
    error = ((a_upper * b_upper - high) + a_upper * b_lower) + a_lower * b_upper
    return DoubleFloat(high, error + a_lower * b_lower)


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two float32 numbers whose sum is `x`: with the upper 12 bits of its significand, and with the lower 12."""
    if recording.is_active():  # by products and differences alone, with an upper half that is rounded
        multiple = x * np.float32(2**12 + 1)
        upper = multiple - (multiple - x)
        return upper, x - upper
    upper = from_bits(bits(x) & np.int32(-1 << 12))
    return upper, x - upper


def add(a: DoubleFloat, b: DoubleFloat) -> DoubleFloat:
    """``a + b``, to about 2**-46 if the signs agree."""
    high, low = two_sum(a.high, b.high)
    return fast_two_sum(high, low + (a.low + b.low))


def multiply(a: DoubleFloat, b: DoubleFloat) -> DoubleFloat:
    """``a * b``, to about 2**-46."""
    high, low = two_product(a.high, b.high)
    return fast_two_sum(high, low + (exact.product(a.high, b.low) + exact.product(a.low, b.high)))


def reciprocal(x: DoubleFloat) -> DoubleFloat:
    """``1 / x``, to about 2**-46."""
    approximation = exact.reciprocal(x.high)
    product = multiply(x, widen(approximation))
    # A Newton step: the product is near 1, so that its difference from 1 is exact.
    error = (1 - product.high) - product.low
    return fast_two_sum(approximation, exact.product(approximation, error))
