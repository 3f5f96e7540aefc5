"""Float32 arithmetic as IEEE 754 defines it, inside any caller's `jax.jit`, on every backend.

XLA and LLVM may contract ``a * b + c`` to one rounding, turn ``x / d`` into ``x * (1 / d)``, move constants
from one operation to the next, and leave out the rounding of a bfloat16 that is widened again. XLA:GPU
divides with an error of up to 2 ulp. This module holds everything that prevents this: each result
here is rounded once, where the formula says so, and is sealed against what the caller computes around it.

Subnormal numbers are excluded: backends flush them to zero at run time, but not when they fold constants.

What every operator needs is written in `jax.lax`: an operation of `jax.numpy` takes longer to trace, and traces a function
of its own for each new shape.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic.broadcasting import broadcast
from jquant.arithmetic.float_bits import FRACTION, HIDDEN_BIT, INFINITY, SIGN, bits, from_bits
from jquant.lowering import by_platform
from jquant.lowering.bitcast import bitcast, bitcast_unguarded


@jax.custom_jvp
def seal(x: jax.Array) -> jax.Array:
    """`x`, unchanged, such that no compiler moves arithmetic across it.

    Neither XLA nor LLVM can prove which side of the `select` is taken (minus infinity is one of the numbers that stay), and
    neither side is a product, a quotient or a sum that they know how to merge with the next operation. Barriers, bitcasts,
    clamps to infinity, comparisons with it and ``select(x != x, ...)`` do not work. Nor does ``abs(x) > largest`` with the
    sides exchanged, which LLVM turns into a comparison with infinity.
    """
    largest = lax.full_like(x, jnp.finfo(x.dtype).max)
    return lax.select(lax.le(x, largest), x, lax.add(x, x))


@seal.defjvp
def _seal_jvp(primals, tangents):
    return seal(*primals), tangents[0]


def unmerged_on_cpu(x: jax.Array) -> jax.Array:
    """`x`, a float32, such that XLA:CPU merges no constants across it: enough between two sums, or two products.

    It is a conversion to the precision that `x` already has. LLVM removes that, so that nothing waits for it, as it would
    for the comparison of a `seal`. XLA:GPU removes it as well, and may then merge constants.
    """
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=23)


def widen(x: jax.Array) -> jax.Array:
    """The exact float32 value of a float operand, whose own rounding is done first."""
    return seal(x) if x.dtype == jnp.float32 else _as_stored(x).astype(jnp.float32)


def numerator(x: jax.Array) -> jax.Array:
    """The float32 value of a float operand that `quotient` divides, or that is compared: it needs no seal."""
    return x if x.dtype == jnp.float32 else widen(x)


def narrow(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """A float32 result, rounded once more to `dtype`, half to even."""
    return x if dtype == jnp.float32 else _as_stored(x.astype(dtype))


@jax.custom_jvp
def _as_stored(x: jax.Array) -> jax.Array:
    """A 16-bit float, rounded. XLA, which would widen it unrounded, cannot see that its bits stay the same."""
    return bitcast(bitcast(x, jnp.uint16), x.dtype)


@_as_stored.defjvp
def _as_stored_jvp(primals, tangents):
    return _as_stored(*primals), tangents[0]


def _of_both(operation: Callable[[jax.Array, jax.Array], jax.Array], a: jax.Array, b: jax.Array) -> jax.Array:
    """An operation of `jax.lax` on operands that broadcast."""
    return operation(a, b) if a.shape == b.shape else operation(*broadcast(a, b))


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """``fl(a * b)``"""
    return seal(_of_both(lax.mul, a, b))


def sum(a: jax.Array, b: jax.Array) -> jax.Array:
    """``fl(a + b)``"""
    return seal(_of_both(lax.add, a, b))


def difference(a: jax.Array, b: jax.Array) -> jax.Array:
    """``fl(a - b)``"""
    return seal(_of_both(lax.sub, a, b))


def integer_difference(a: jax.Array, b: jax.Array) -> jax.Array:
    """``fl(a - b)`` of two integer arrays of one dtype: the difference is exact, whatever its width."""
    if a.dtype.itemsize < 4:
        return _of_both(lax.sub, a.astype(jnp.int32), b.astype(jnp.int32)).astype(jnp.float32)
    # 33 bits: the differences of the halves are exact in float32, and so is the shift by 16.
    low_half = a.dtype.type(0xFFFF)
    high = (a >> 16).astype(jnp.int32) - (b >> 16).astype(jnp.int32)
    low = (a & low_half).astype(jnp.int32) - (b & low_half).astype(jnp.int32)
    return sum(high.astype(jnp.float32) * 65536, low.astype(jnp.float32))


@jax.custom_jvp
def quotient(x: jax.Array, d: jax.Array) -> jax.Array:
    """``fl(x / d)``, correctly rounded. `x` may be an unsealed result: nothing contracts with a quotient."""
    x, d = broadcast(x, d)
    return by_platform.elementwise(_sealed_corrected_quotient, x, d, cpu=native_quotient)


@quotient.defjvp
def _quotient_jvp(primals, tangents):
    (_, d), (x_dot, d_dot) = primals, tangents
    q = quotient(*primals)
    return q, (x_dot - q * d_dot) / d


def reciprocal(d: jax.Array) -> jax.Array:
    """``fl(1 / d)``, with a 1 that XLA:GPU cannot see: it would use the platform's reciprocal, which is no true division."""
    return seal(quotient(lax.select(d != d, d, lax.full_like(d, 1)), d))


def native_quotient(x: jax.Array, d: jax.Array) -> jax.Array:
    """The platform's division, which XLA can neither merge with others nor turn into a product with the reciprocal.

    Each of the three arrays is behind a `select` that XLA cannot see through. If its other side were taken, the sum and
    hence the quotient would be NaN. Nothing is read twice, because XLA:CPU ends its loops at a division that is.
    """
    sum = lax.add(x, d)
    is_number = lax.eq(sum, sum)
    numerator, divisor = lax.select(is_number, x, sum), lax.select(is_number, d, sum)
    return lax.select(is_number, lax.div(numerator, _not_constant(divisor)), sum)


def _not_constant(x: jax.Array) -> jax.Array:
    """`x`, which XLA does not know even where it is a constant: constant folding leaves it to LLVM what an iota equals.

    XLA multiplies a constant that is broadcast by the reciprocal of another one, instead of dividing it.
    """
    long = [dimension for dimension, size in enumerate(x.shape) if not isinstance(size, int) or size > 1]
    if not long:
        return x
    number = lax.broadcasted_iota(jnp.int32, x.shape, long[0], out_sharding=jax.typeof(x).sharding)
    condition = lax.eq(number, lax.full_like(number, 1))
    return lax.select(condition, lax.select(condition, x, lax.full_like(x, 1)), x)


def _sealed_corrected_quotient(x: jax.Array, d: jax.Array) -> jax.Array:
    return seal(corrected_quotient(seal(x), d))


def corrected_quotient(x: jax.Array, d: jax.Array) -> jax.Array:
    """The correctly rounded quotient of a sealed `x`, on platforms whose division is off by an ulp or two.

    It divides the significands, as 24-bit integers. Float32 arithmetic gives their quotient to within 2;
    the remainder, exact in (wrapping) integer arithmetic, decides.
    """
    x_bits, d_bits = bitcast_unguarded(x, jnp.int32), bits(d)
    x_exponent, x_significand = _exponent_and_significand(x_bits)
    d_exponent, d_significand = _exponent_and_significand(d_bits)
    # The shift that brings the quotient of the significands into [2**23, 2**24).
    shift = 23 + (x_significand < d_significand).astype(jnp.int32)
    approximation = _scaled(x_significand, shift) / _scaled(d_significand, 0)
    significand = nearest_integer_quotient(x_significand << shift, d_significand, approximation)
    exponent = x_exponent - d_exponent + 150 - shift
    sign = (x_bits ^ d_bits) & SIGN
    finite = assemble(sign, exponent, significand)
    normal = _is_normal_exponent(x_exponent) & _is_normal_exponent(d_exponent)
    return lax.select(normal, finite, x / d)


def quotient_of_uint32_max(d: jax.Array) -> jax.Array:
    """``fl((2**32 - 1) / d)`` for ``d >= 0``. The numerator is not a float32, so `quotient` cannot take it."""
    exponent, divisor = decompose(d)
    shift = 15
    numerator = jnp.full_like(divisor, -(1 << shift))  # (2**32 - 1) << 15, modulo 2**32
    approximation = np.float32(2.0 ** (32 + shift)) / _scaled(divisor, 0)
    significand = nearest_integer_quotient(numerator, divisor, approximation)
    finite = assemble(jnp.zeros_like(divisor), 300 - shift - exponent, significand)
    return seal(lax.select(_is_normal_exponent(exponent), finite, np.float32(2.0**32) / d))


def nearest_integer_quotient(numerator: jax.Array, divisor: jax.Array, approximation: jax.Array) -> jax.Array:
    """``rne(numerator / divisor)`` in integers, from a float32 `approximation` of it that is off by 2 at most.

    `numerator` is given modulo 2**32; the remainder is small enough to be exact anyway.
    """
    quotient = approximation.astype(jnp.int32)
    remainder = numerator - quotient * divisor
    for _ in range(3):
        odd = quotient & 1
        step = (2 * remainder + odd > divisor).astype(jnp.int32) - (2 * remainder - odd < -divisor).astype(jnp.int32)
        quotient, remainder = quotient + step, remainder - step * divisor
    return quotient


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


def without_subnormals(x: jax.Array) -> jax.Array:
    """`x`, with 0 for subnormal numbers, which XLA flushes at run time but not when it folds constants."""
    return lax.select(lax.abs(x) < lax.full_like(x, jnp.finfo(jnp.float32).tiny), lax.full_like(x, 0), x)


def round_half_even(x: jax.Array) -> jax.Array:
    """``rne(x)``: the nearest integer, ties to even."""
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def round_half_away(x: jax.Array) -> jax.Array:
    """``away(x)``: the nearest integer, ties away from zero."""
    return lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)


def round_half_up(x: jax.Array) -> jax.Array:
    """``floor(fl(x + 0.5))`` of a sealed `x`, ties toward infinity; as in TensorFlow, the float32 below 0.5 becomes 1."""
    return lax.floor(x + lax.full_like(x, 0.5))


def nearest_integer(x: jax.Array, zero_point: jax.Array | None, dtype: np.dtype) -> jax.Array:
    """``sat(rne(x) + zero_point)``, for an integer `dtype` of at most 16 bits; NaN becomes 0.

    `x` may be an unsealed result: nothing contracts with a rounding.
    """
    return _shared_as(_nearest(x, zero_point, dtype), dtype)


def nearest_integer_in_kernel(x: jax.Array, zero_point: jax.Array | None, dtype: np.dtype) -> jax.Array:
    """`nearest_integer` in terms that kernels can have in their bodies."""
    return _nearest(x, zero_point, dtype).astype(dtype)


def _nearest(x: jax.Array, zero_point: jax.Array | None, dtype: np.dtype) -> jax.Array:
    """`nearest_integer` in int32."""
    offset = jnp.int32(0) if zero_point is None else zero_point.astype(jnp.int32)
    # Clamped before rounding, which gives the same because the limits are integers, and needs no saturating conversion.
    return _of_both(lax.add, integer(round_half_even(_limited(x, offset, dtype))), offset)


def saturated(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """``sat(x)`` of integers in float32, for an integer `dtype`; NaN becomes 0.

    As in `nearest_integer`, `x` need not be sealed: an integer, or a difference of two, has already been rounded.
    """
    if jnp.iinfo(dtype).bits == 32:
        return saturating_cast(x, dtype)
    return _shared_as(integer(_limited(x, jnp.int32(0), dtype)), dtype)


def _shared_as(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """The int32 numbers `x` as an integer `dtype`, computed once; those of 2 or 4 bits as bytes."""
    return shared(x.astype(dtype if jnp.iinfo(dtype).bits >= 8 else jnp.int8)).astype(dtype)


def _limited(x: jax.Array, offset: jax.Array, dtype: np.dtype) -> jax.Array:
    """`x` clamped to the limits of the integer `dtype` less `offset`, which is added later; 0 less `offset` for NaN."""
    limits = jnp.iinfo(dtype)

    def less_offset(limit: int) -> jax.Array:
        return lax.sub(lax.full_like(offset, limit), offset).astype(jnp.float32)

    zero = less_offset(0)
    x, zero, low, high = broadcast(x, zero, less_offset(limits.min) if limits.min else zero, less_offset(limits.max))
    x = lax.select(lax.eq(x, x), x, zero)
    x = lax.select(lax.gt(x, low), x, low)
    return lax.select(lax.lt(x, high), x, high)


def integer(x: jax.Array) -> jax.Array:
    """The int32 of an integer in float32 below 2**22: the last bits of its sum with 1.5 * 2**23."""
    shift = np.float32(1.5 * 2**23)
    number = bitcast_unguarded(lax.add(x, lax.full_like(x, shift)), jnp.int32)
    return lax.sub(number, lax.full_like(x, shift.view(np.int32), jnp.int32))


def saturating_cast(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """``sat(trunc(x))``: toward zero, limited to the range of the integer `dtype`; NaN becomes 0."""
    limits = jnp.iinfo(dtype)
    # What XLA makes of a NaN differs between platforms.
    number = lax.select(x == x, x, lax.full_like(x, 0))
    if limits.bits < 32:  # by way of int32, because kernels convert to nothing else
        inside = lax.max(lax.full_like(x, limits.min), lax.min(number, lax.full_like(x, limits.max)))
        return inside.astype(jnp.int32).astype(dtype)
    inside = lax.max(number, lax.full_like(x, limits.min)).astype(dtype)
    # The upper limit itself may not be a float32 (2**31 - 1 is not); the power of two above it is.
    return lax.select(
        number >= lax.full_like(x, 2.0 ** (limits.bits - (limits.min < 0))), lax.full_like(inside, limits.max), inside
    )


def power_of_two(exponent: jax.Array) -> jax.Array:
    """``2.0 ** exponent``, for the exponents of normal numbers."""
    return from_bits((exponent + 127) << 23)


def decompose(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Biased exponent and 24-bit integer significand: ``abs(x) == significand * 2.0 ** (exponent - 150)``."""
    return _exponent_and_significand(bits(x))


def _exponent_and_significand(bits: jax.Array) -> tuple[jax.Array, jax.Array]:
    return (bits >> 23) & 0xFF, (bits & FRACTION) | HIDDEN_BIT


def _is_normal_exponent(exponent: jax.Array) -> jax.Array:
    return (exponent > 0) & (exponent < 0xFF)


def _scaled(significand: jax.Array, shift: jax.Array | int) -> jax.Array:
    """``float32(significand) * 2 ** shift``"""
    return bitcast_unguarded((significand & FRACTION) | ((150 + shift) << 23), jnp.float32)


def assemble(sign: jax.Array, exponent: jax.Array, significand: jax.Array) -> jax.Array:
    """The float32 of a sign bit, a biased exponent and a significand in [2**23, 2**24]; 0 in place of a subnormal.

    All are computed from bits, as by `decompose`.
    """
    # Added, not or-ed: the hidden bit, and a significand of 2**24, carry into the exponent.
    magnitude = ((exponent - 1) << 23) + significand
    magnitude = lax.select(exponent <= 0, jnp.zeros_like(magnitude), magnitude)
    magnitude = lax.select(exponent >= 0xFF, jnp.full_like(magnitude, INFINITY), magnitude)
    return bitcast_unguarded(sign | magnitude, jnp.float32)
