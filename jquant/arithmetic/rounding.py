"""Rounding to integers, and saturation to the integers of a type.

The arguments need not be sealed: no compiler contracts an operation with a rounding.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic.broadcasting import broadcast, elementwise
from jquant.lowering import materialize, recording
from jquant.lowering.bitcast import bitcast_unguarded


def round_half_even(x: jax.Array) -> jax.Array:
    """``rne(x)``: the nearest integer, ties to even."""
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def round_half_away(x: jax.Array) -> jax.Array:
    """``away(x)``: the nearest integer, ties away from zero."""
    return lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)


def round_half_up(x: jax.Array) -> jax.Array:
    """``floor(fl(x + 0.5))`` of a sealed `x`: ties toward infinity. As in TensorFlow, the float32 below 0.5 becomes 1."""
    return lax.floor(x + lax.full_like(x, 0.5))


@recording.recorded("rounding.nearest_integer", static=("dtype",), elementwise=True)
def nearest_integer(x: jax.Array, zero_point: jax.Array | None, dtype: np.dtype) -> jax.Array:
    """``sat(rne(x) + zero_point)``, for an integer `dtype` of at most 16 bits; NaN becomes 0."""
    return _shared_as(_nearest(x, zero_point, dtype), dtype)


def nearest_integer_in_kernel(x: jax.Array, zero_point: jax.Array | None, dtype: np.dtype) -> jax.Array:
    """`nearest_integer` in the body of a kernel, where nothing is computed once for several loops."""
    return _nearest(x, zero_point, dtype).astype(dtype)


@recording.recorded("rounding.saturated", static=("dtype",), elementwise=True)
def saturated(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """``sat(x)`` of integers in float32, for an integer `dtype`; NaN becomes 0.

    `x` may be an unsealed difference of integers.
    """
    if jnp.iinfo(dtype).bits == 32:
        return saturating_cast(x, dtype)
    return _shared_as(integer(_limited(x, jnp.int32(0), dtype)), dtype)


def saturating_cast(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """``sat(trunc(x))``: toward zero, limited to the range of the integer `dtype`; NaN becomes 0."""
    limits = jnp.iinfo(dtype)
    # XLA's own conversion of a NaN differs between platforms.
    number = lax.select(x == x, x, lax.full_like(x, 0))
    if limits.bits < 32:  # by way of int32, because kernels convert to nothing else
        inside = lax.max(lax.full_like(x, limits.min), lax.min(number, lax.full_like(x, limits.max)))
        return inside.astype(jnp.int32).astype(dtype)
    inside = lax.max(number, lax.full_like(x, limits.min)).astype(dtype)
    # The upper limit itself may not be a float32 (2**31 - 1 is not); the power of two above it is.
    return lax.select(
        number >= lax.full_like(x, 2.0 ** (limits.bits - (limits.min < 0))), lax.full_like(inside, limits.max), inside
    )


def integer(x: jax.Array) -> jax.Array:
    """The int32 of an integer in float32 below 2**22: the last bits of its sum with 1.5 * 2**23."""
    if recording.is_active():  # ONNX has no bits of floats before operator set 26
        return x.astype(jnp.int32)
    shift = np.float32(1.5 * 2**23)
    number = bitcast_unguarded(lax.add(x, lax.full_like(x, shift)), jnp.int32)
    return lax.sub(number, lax.full_like(x, shift.view(np.int32), jnp.int32))


def _nearest(x: jax.Array, zero_point: jax.Array | None, dtype: np.dtype) -> jax.Array:
    """`nearest_integer` in int32."""
    offset = jnp.int32(0) if zero_point is None else zero_point.astype(jnp.int32)
    # Clamped before rounding, which gives the same because the limits are integers, and needs no saturating conversion.
    return elementwise(lax.add, integer(round_half_even(_limited(x, offset, dtype))), offset)


def _shared_as(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """The int32 numbers `x` as an integer `dtype`, computed once; those of 2 or 4 bits as bytes."""
    return materialize.shared(x.astype(dtype if jnp.iinfo(dtype).bits >= 8 else jnp.int8)).astype(dtype)


def _limited(x: jax.Array, offset: jax.Array, dtype: np.dtype) -> jax.Array:
    """`x` clamped to the limits of the integer `dtype` less `offset`, which is added later; NaN becomes 0 less `offset`."""
    limits = jnp.iinfo(dtype)

    def less_offset(limit: int) -> jax.Array:
        return lax.sub(lax.full_like(offset, limit), offset).astype(jnp.float32)

    zero = less_offset(0)
    x, zero, low, high = broadcast(x, zero, less_offset(limits.min) if limits.min else zero, less_offset(limits.max))
    x = lax.select(lax.eq(x, x), x, zero)
    if recording.is_active():  # two nodes in place of four
        return lax.min(lax.max(x, low), high)
    x = lax.select(lax.gt(x, low), x, low)
    return lax.select(lax.lt(x, high), x, high)
