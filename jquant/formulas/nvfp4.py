"""The elements and scales of NVFP4."""

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact, float_bits, narrow_floats
from jquant.formulas import blocks
from jquant.formulas.extremes import largest_magnitude
from jquant.lowering import materialize

BLOCK_SIZE = 16

_ELEMENT = jnp.dtype("float4_e2m1fn")
_SCALE = jnp.dtype("float8_e4m3fn")
_LARGEST = np.float32(6)
_LARGEST_SCALE = np.float32(448)
_SMALLEST = np.float32(2.0**-100)  # of tensor scales: what follows from it is then never a subnormal number


def tensor_scale_of(x: jax.Array, *, is_clipped: bool = False) -> jax.Array:
    """The tensor scale of float32 `x`: the largest magnitude becomes the largest element times the largest scale.

    Where it would be below the smallest one, it is 1, or with `is_clipped` the smallest, unless `x` is 0.
    """
    largest = largest_magnitude(x, range(x.ndim)).reshape(())
    scale = exact.quotient(largest, _LARGEST * _LARGEST_SCALE)
    of_tiny = jnp.where(largest == 0, np.float32(1), _SMALLEST) if is_clipped else np.float32(1)
    return jnp.where(scale < _SMALLEST, of_tiny, scale)


def scale_of(largest: jax.Array, tensor_scale: jax.Array) -> jax.Array:
    """The scale of a block, in float8_e4m3fn, from the bits of its largest magnitude."""
    ratio = exact.quotient(exact.quotient(float_bits.from_bits(largest), _LARGEST), tensor_scale)
    finite_or_nan = float_bits.nan_where(largest >= float_bits.INFINITY, ratio)
    return narrow_floats.narrow(finite_or_nan, _SCALE)


def elements(x: jax.Array, scale: jax.Array, tensor_scale: jax.Array, axis: int) -> jax.Array:
    """The nearest elements to ``x / (scale * tensor_scale)``, of float32 `x` and the scales of its blocks."""
    scale = narrow_floats.widen(scale)
    step = exact.product(scale, tensor_scale)
    step = materialize.once(jnp.where(scale == 0, np.float32(np.inf), step))
    quotient = exact.quotient(x, blocks.repeat(step, axis, BLOCK_SIZE, x.shape[axis]))
    return blocks.from_code(narrow_floats.encode(quotient, narrow_floats.format_of(_ELEMENT)), _ELEMENT)


def numbers(values: jax.Array, scale: jax.Array, tensor_scale: jax.Array, axis: int) -> jax.Array:
    """``values * scale * tensor_scale`` in float32, of elements or of their codes in uint8."""
    scales = blocks.repeat(narrow_floats.widen(scale), axis, BLOCK_SIZE, values.shape[axis])
    is_code = values.dtype == jnp.uint8
    widened = narrow_floats.decode(values, narrow_floats.format_of(_ELEMENT)) if is_code else narrow_floats.widen(values)
    return exact.product(exact.product(widened, scales), exact.widen(tensor_scale))  # the first, of 6 bits, is exact
