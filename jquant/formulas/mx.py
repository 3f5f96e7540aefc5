"""The elements and scales of the OCP Microscaling formats."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import e8m0, float_bits, narrow_floats, rounding
from jquant.arithmetic.narrow_floats import FLOATS_OF_6_BITS
from jquant.formulas import blocks

_INT8 = jnp.dtype(jnp.int8)
_UINT8 = jnp.dtype(jnp.uint8)
_FRACTION_BITS = 6  # of int8, whose integers count 64ths


def _largest_exponent(element: np.dtype) -> int:
    """The exponent of the largest power of two among the elements."""
    if element == _INT8:
        return 0
    return (FLOATS_OF_6_BITS.get(element) or narrow_floats.format_of(element)).largest_exponent


def scale_code(largest: jax.Array, element: np.dtype) -> jax.Array:
    """The code of the scale of a block, in uint8, from the bits of its largest magnitude."""
    exponent = lax.max((largest >> 23) - np.int32(_largest_exponent(element)), jnp.zeros_like(largest))
    is_finite = largest < float_bits.INFINITY
    return lax.select(is_finite, exponent, jnp.full_like(exponent, e8m0.NAN)).astype(jnp.uint8)


def elements(x: jax.Array, code: jax.Array, element: np.dtype) -> jax.Array:
    """The nearest elements to ``x / scale``, of float32 `x` and the code of the scale."""
    exponent = code - e8m0.BIAS
    x = float_bits.nan_where(code == e8m0.NAN, x)
    if element == _INT8:
        nearest = rounding.nearest_integer(e8m0.ldexp(x, _FRACTION_BITS - exponent), None, element)
        return lax.max(nearest, jnp.full_like(nearest, -127))
    if element in FLOATS_OF_6_BITS:
        return narrow_floats.encode(x, FLOATS_OF_6_BITS[element], exponent=exponent)
    return blocks.from_code(narrow_floats.encode(x, narrow_floats.format_of(element), exponent=exponent), element)


def numbers(values: jax.Array, code: jax.Array, element: np.dtype) -> jax.Array:
    """``values * scale`` in float32, of the code of the scale."""
    exponent = code - e8m0.BIAS
    if element == _INT8:
        magnitude = e8m0.scaled_integer(lax.abs(values.astype(jnp.int32)), exponent - _FRACTION_BITS)
        number = lax.select(values < 0, -magnitude, magnitude)
    elif values.dtype == _UINT8:
        format = FLOATS_OF_6_BITS.get(element) or narrow_floats.format_of(element)
        number = narrow_floats.decode(values, format, exponent=exponent)
    else:
        number = narrow_floats.widen(values, exponent=exponent)
    return float_bits.nan_where(code == e8m0.NAN, number)
