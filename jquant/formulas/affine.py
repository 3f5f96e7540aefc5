"""The affine maps between quantized values and real numbers."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import e8m0, exact, narrow_floats, rounding
from jquant.lowering.recording import recorded
from jquant.quantized_tensor import Quantized, ScaleZeroPoint


@recorded("affine.dequantize", elementwise=True)
def dequantize(x: Quantized) -> jax.Array:
    """``fl((x - zero_point) * scale)`` in float32, with the difference as in `offset`."""
    if x.scale.dtype == e8m0.DTYPE:
        return e8m0.product(offset(x), x.scale)
    return exact.product(offset(x), exact.widen(x.scale))


def difference(x: Quantized) -> jax.Array:
    """``x - zero_point`` in int32, for integers of at most 16 bits."""
    values = x.values.astype(jnp.int32)
    return values if x.zero_point is None else values - x.zero_point.astype(jnp.int32)


def offset(x: Quantized) -> jax.Array:
    """``fl(x - zero_point)``: exact for integers of up to 16 bits."""
    if narrow_floats.is_narrow_float(x.values.dtype):
        values = narrow_floats.widen(x.values)
        return values if x.zero_point is None else exact.difference(values, narrow_floats.widen(x.zero_point))
    return x.values.astype(jnp.float32) if x.zero_point is None else exact.integer_difference(x.values, x.zero_point)


@recorded("affine.quantize", static=("dtype",), elementwise=True)
def quantize(x: jax.Array, output: ScaleZeroPoint, dtype: np.dtype) -> jax.Array:
    """``sat(rne(x / scale) + zero_point)``, for an integer `dtype` of at most 16 bits; NaN becomes 0."""
    return rounding.nearest_integer(exact.quotient(x, exact.widen(output.scale)), output.zero_point, dtype)


def quotient(x: jax.Array, scale: jax.Array, precision: np.dtype) -> jax.Array:
    """``x / scale`` in float32, for float32 `x` and a scale that is float32 or a power of two, rounded to `precision`.

    If `precision` has 16 bits, both operands are rounded to it first.
    """
    if precision == jnp.float32:
        return e8m0.quotient(x, scale) if scale.dtype == e8m0.DTYPE else exact.quotient(x, scale)
    divisor = e8m0.widen(scale) if scale.dtype == e8m0.DTYPE else scale
    dividend, divisor = (exact.widen(exact.narrow(operand, precision)) for operand in (x, divisor))
    return exact.widen(exact.narrow(exact.quotient(dividend, divisor), precision))


def nearest(quotient: jax.Array, zero_point: jax.Array | None, dtype: np.dtype, saturate: bool = True) -> jax.Array:
    """Quantizes a quotient by the scale: ``sat(rne(quotient) + zero_point)`` for integers of at most 16 bits.

    For narrow floats, ``nearest(fl(quotient + zero_point))``, as in `narrow_floats.encode`. A zero point of 0 keeps -0.
    """
    if not narrow_floats.is_narrow_float(dtype):
        return rounding.nearest_integer(quotient, zero_point, dtype)
    if zero_point is not None:
        quotient, zero_point = jnp.broadcast_arrays(quotient, narrow_floats.widen(zero_point))
        quotient = lax.select(zero_point == 0, quotient, exact.sum(quotient, zero_point))
    return narrow_floats.narrow(quotient, dtype, saturate=saturate)
