"""The bits of float32 numbers, as int32: 1 sign bit, 8 exponent bits biased by 127, 23 fraction bits."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.lowering import recording
from jquant.lowering.bitcast import bitcast

SIGN = np.int32(-(2**31))
MAGNITUDE = np.int32(2**31 - 1)
FRACTION = np.int32(2**23 - 1)
HIDDEN_BIT = np.int32(2**23)
INFINITY = np.int32(0xFF << 23)
NAN = np.int32(0x7FC00000)


def bits(x: jax.Array) -> jax.Array:
    """The bits of float32 `x`, in int32."""
    return bitcast(x, jnp.int32)


def from_bits(bits: jax.Array) -> jax.Array:
    """The float32 numbers with these bits."""
    return bitcast(bits, jnp.float32)


def normalized(magnitude: jax.Array) -> jax.Array:
    """Bits without a sign, changed so that ``>> 23`` and ``& FRACTION`` take subnormal numbers apart like normal ones.

    The biased exponents of subnormal numbers are 0 and less; that of 0 is -149.
    """
    # The bits of a subnormal number are an integer, whose float32 is normal and 2**149 times as large.
    integer = bits(magnitude.astype(jnp.float32)) - np.int32(149 << 23)
    return lax.select(magnitude < HIDDEN_BIT, integer, magnitude)


def nan_where(condition: jax.Array, x: jax.Array) -> jax.Array:
    """`x`, or NaN where the condition holds.

    Selected as integers: a NaN constant would stop `jax.debug_nans` where nothing is wrong. The derivative is 0.
    """
    if recording.is_active():  # ONNX has no bits of floats before operator set 26
        return jnp.where(condition, np.float32(np.nan), x)
    return from_bits(jnp.where(condition, NAN, bits(x)))
