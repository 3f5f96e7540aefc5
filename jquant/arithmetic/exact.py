"""Float32 arithmetic as IEEE 754 defines it, inside any caller's `jax.jit`, on every backend.

XLA and LLVM may contract ``a * b + c`` to one rounding, turn ``x / d`` into ``x * (1 / d)``, move constants
from one operation to the next, and leave out the rounding of a bfloat16 that is widened again. XLA:GPU
divides with an error of up to 2 ulp. With `jquant.lowering`, this module holds everything that prevents this: each result
here is rounded once, where the formula says so, and is sealed against what the caller computes around it.

Subnormal numbers are excluded: backends flush them to zero at run time, but not when they fold constants.

What every operator needs is written in `jax.lax`: functions of `jax.numpy` take longer to trace, and are traced again for
each new shape.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import significands
from jquant.arithmetic.broadcasting import broadcast, elementwise
from jquant.arithmetic.float_bits import SIGN, bits
from jquant.lowering import by_platform, recording
from jquant.lowering.bitcast import bitcast, bitcast_unguarded


@jax.custom_jvp
def seal(x: jax.Array) -> jax.Array:
    """`x`, unchanged, such that no compiler moves arithmetic across it.

    Neither XLA nor LLVM can prove which side of the `select` is taken (minus infinity takes the same one as finite numbers),
    and neither side is a product, a quotient or a sum that they know how to merge with the next operation. Barriers,
    bitcasts, clamps to infinity, comparisons with it and ``select(x != x, ...)`` do not work. Nor does ``abs(x) > largest``
    with the sides exchanged, which LLVM turns into a comparison with infinity.
    """
    if recording.is_active():
        return x
    largest = lax.full_like(x, jnp.finfo(x.dtype).max)
    return lax.select(lax.le(x, largest), x, lax.add(x, x))


@seal.defjvp
def _seal_jvp(primals, tangents):
    return seal(*primals), tangents[0]


def unmerged_on_cpu(x: jax.Array) -> jax.Array:
    """`x`, a float32, such that XLA:CPU merges no constants across it: enough between two sums, or two products.

    This is a conversion to the precision that `x` already has. LLVM removes it, so that it adds no latency, unlike the
    comparison of a `seal`. XLA:GPU removes it as well, and may then merge constants.
    """
    return x if recording.is_active() else lax.reduce_precision(x, exponent_bits=8, mantissa_bits=23)


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
    return x if recording.is_active() else bitcast(bitcast(x, jnp.uint16), x.dtype)


@_as_stored.defjvp
def _as_stored_jvp(primals, tangents):
    return _as_stored(*primals), tangents[0]


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """``fl(a * b)``"""
    return seal(elementwise(lax.mul, a, b))


def sum(a: jax.Array, b: jax.Array) -> jax.Array:
    """``fl(a + b)``"""
    return seal(elementwise(lax.add, a, b))


def difference(a: jax.Array, b: jax.Array) -> jax.Array:
    """``fl(a - b)``"""
    return seal(elementwise(lax.sub, a, b))


@recording.recorded("exact.integer_difference", elementwise=True)
def integer_difference(a: jax.Array, b: jax.Array) -> jax.Array:
    """``fl(a - b)`` of two integer arrays of one dtype: the difference is exact, whatever its width."""
    if a.dtype.itemsize < 4:
        return elementwise(lax.sub, a.astype(jnp.int32), b.astype(jnp.int32)).astype(jnp.float32)
    # 33 bits: the differences of the halves are exact in float32, and so is the shift by 16.
    low_half = a.dtype.type(0xFFFF)
    high = (a >> 16).astype(jnp.int32) - (b >> 16).astype(jnp.int32)
    low = (a & low_half).astype(jnp.int32) - (b & low_half).astype(jnp.int32)
    return sum(high.astype(jnp.float32) * 65536, low.astype(jnp.float32))


@jax.custom_jvp
def quotient(x: jax.Array, d: jax.Array) -> jax.Array:
    """``fl(x / d)``, correctly rounded. `x` may be unsealed: no compiler contracts an operation with a quotient."""
    x, d = broadcast(x, d)
    if recording.is_active():
        return lax.div(x, d)
    return by_platform.elementwise(_sealed_corrected_quotient, x, d, cpu=native_quotient)


@quotient.defjvp
def _quotient_jvp(primals, tangents):
    (_, d), (x_dot, d_dot) = primals, tangents
    q = quotient(*primals)
    d, x_dot, d_dot, _ = broadcast(d, x_dot, d_dot, q)
    return q, (x_dot - q * d_dot) / d


def reciprocal(d: jax.Array) -> jax.Array:
    """``fl(1 / d)``, with a 1 that XLA:GPU cannot see: it would use the platform's approximate reciprocal."""
    one = lax.full_like(d, 1)
    return seal(quotient(one if recording.is_active() else lax.select(d != d, d, one), d))


def native_quotient(x: jax.Array, d: jax.Array) -> jax.Array:
    """The platform's division, which XLA can neither merge with others nor turn into a product with the reciprocal.

    Numerator, divisor and quotient are each behind a `select` that XLA cannot see through. If its other side were taken,
    the sum and hence the quotient would be NaN. The quotient has one user: XLA:CPU does not fuse a division that has two.
    """
    sum = lax.add(x, d)
    is_number = lax.eq(sum, sum)
    numerator, divisor = lax.select(is_number, x, sum), lax.select(is_number, d, sum)
    return lax.select(is_number, lax.div(numerator, _not_constant(divisor)), sum)


def _not_constant(x: jax.Array) -> jax.Array:
    """`x`, hidden from XLA's constant folding, which does not evaluate comparisons with an iota; LLVM does.

    XLA would multiply a broadcast constant by the reciprocal of another one, instead of dividing it.
    """
    dimensions = [dimension for dimension, size in enumerate(x.shape) if not isinstance(size, int) or size > 1]
    if not dimensions:
        return x
    number = lax.broadcasted_iota(jnp.int32, x.shape, dimensions[0], out_sharding=jax.typeof(x).sharding)
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
    x_exponent, x_significand = significands.exponent_and_significand(x_bits)
    d_exponent, d_significand = significands.exponent_and_significand(d_bits)
    # The shift that brings the quotient of the significands into [2**23, 2**24).
    shift = 23 + (x_significand < d_significand).astype(jnp.int32)
    approximation = significands.scaled(x_significand, shift) / significands.scaled(d_significand, 0)
    significand = significands.nearest_integer_quotient(x_significand << shift, d_significand, approximation)
    exponent = x_exponent - d_exponent + 150 - shift
    sign = (x_bits ^ d_bits) & SIGN
    finite = significands.assemble(sign, exponent, significand)
    normal = significands.is_normal_exponent(x_exponent) & significands.is_normal_exponent(d_exponent)
    return lax.select(normal, finite, x / d)


@recording.recorded("exact.quotient_of_uint32_max", elementwise=True)
def quotient_of_uint32_max(d: jax.Array) -> jax.Array:
    """``fl((2**32 - 1) / d)`` for ``d >= 0``. The numerator is not a float32, so `quotient` cannot take it."""
    exponent, divisor = significands.decompose(d)
    shift = 15
    numerator = jnp.full_like(divisor, -(1 << shift))  # (2**32 - 1) << 15, modulo 2**32
    approximation = np.float32(2.0 ** (32 + shift)) / significands.scaled(divisor, 0)
    significand = significands.nearest_integer_quotient(numerator, divisor, approximation)
    finite = significands.assemble(jnp.zeros_like(divisor), 300 - shift - exponent, significand)
    return seal(lax.select(significands.is_normal_exponent(exponent), finite, np.float32(2.0**32) / d))


def without_subnormals(x: jax.Array) -> jax.Array:
    """`x`, with 0 for subnormal numbers, which XLA flushes at run time but not when it folds constants."""
    return lax.select(lax.abs(x) < lax.full_like(x, jnp.finfo(jnp.float32).tiny), lax.full_like(x, 0), x)
