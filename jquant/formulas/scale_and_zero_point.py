"""The scale and the zero point that represent a range of real numbers in integers."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact, rounding
from jquant.lowering.formula import formula
from jquant.quantized_tensor import ScaleZeroPoint


@formula("scale_and_zero_point", static=("dtype", "symmetric", "narrow_range"))
def quantization_parameters(
    min: jax.Array, max: jax.Array, dtype: np.dtype, symmetric: bool, narrow_range: bool
) -> ScaleZeroPoint:
    """The formula of `jquant.scale_and_zero_point`, for float32 arrays of one shape."""
    limits = jnp.iinfo(dtype)
    smallest, largest = int(limits.min) + narrow_range, int(limits.max)
    low, high = jnp.minimum(exact.widen(min), 0), jnp.maximum(exact.widen(max), 0)
    if symmetric:  # half of the range over half of the integers: all of it may be wider than the given range, and overflow
        low, high = -jnp.maximum(-low, high), jnp.zeros_like(high)
    steps = jnp.float32((largest - smallest) / (2 if symmetric else 1))
    scale = exact.quotient(high - low, steps)
    empty = scale < jnp.finfo(jnp.float32).tiny
    scale = jnp.where(empty, jnp.float32(1), scale)
    if symmetric:
        middle = round((smallest + largest) / 2)
        zero_point = jnp.full_like(low, middle, dtype)
        if middle:
            zero_point = jnp.where(empty | jnp.isnan(scale), jnp.zeros_like(zero_point), zero_point)
    else:
        offset = smallest - exact.quotient(low, scale)
        zero_point = rounding.nearest_integer(jnp.where(empty, jnp.float32(0), offset), None, dtype)
    return ScaleZeroPoint(scale, zero_point)
