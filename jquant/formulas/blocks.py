"""Blocks of elements along a dimension, each of which shares a scale."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import float_bits, narrow_floats
from jquant.lowering import materialize, recording

_LANES = 8


def repeat(x: jax.Array, axis: int, block_size: int, size: int) -> jax.Array:
    """The value of each block, repeated for its elements: `size` elements along `axis`; the last block may be partial."""
    if recording.is_active() and x.dtype.itemsize == 1 and jnp.issubdtype(x.dtype, jnp.integer):
        return _repeated(x.astype(jnp.int32), axis, block_size, size).astype(x.dtype)  # ONNX moves no integers of 4 bits
    return _repeated(x, axis, block_size, size)


def _repeated(x: jax.Array, axis: int, block_size: int, size: int) -> jax.Array:
    block_size = _limited(block_size, size)
    in_blocks = (*x.shape[: axis + 1], block_size, *x.shape[axis + 1 :])
    repeated = jnp.broadcast_to(lax.expand_dims(x, (axis + 1,)), in_blocks)
    repeated = repeated.reshape(*x.shape[:axis], x.shape[axis] * block_size, *x.shape[axis + 1 :])
    return lax.slice_in_dim(repeated, 0, size, axis=axis)


def largest_magnitude_bits(x: jax.Array, axis: int, block_size: int) -> jax.Array:
    """The bits of the largest magnitude in each block of float32 `x`; those of a NaN or infinity, if there is one.

    Magnitudes are compared as integers, which have the order of the floats, with NaN above all.
    """
    block_size = _limited(block_size, x.shape[axis])
    magnitude = float_bits.bits(in_blocks(x, axis, block_size)) & float_bits.MAGNITUDE
    if axis == x.ndim - 1 and block_size % _LANES == 0:
        # XLA:CPU does not vectorize a reduction over the last dimension: it is five times as fast in two steps.
        lanes = magnitude.reshape(*magnitude.shape[:-1], block_size // _LANES, _LANES)
        magnitude = lanes.max(-2, initial=0)
    return magnitude.max(axis + 1, initial=0)


def _limited(block_size: int, size: int) -> int:
    """The block size, limited to the size of the dimension, unless that is a symbolic size of `jax.export`."""
    return min(block_size, max(size, 1)) if isinstance(size, int) else block_size


def in_blocks(x: jax.Array, axis: int, block_size: int) -> jax.Array:
    """`x` with `axis` split into two dimensions, blocks and elements; zeros fill the last block."""
    size = x.shape[axis]
    blocks = -(-size // block_size)
    padding = [(0, blocks * block_size - size if dimension == axis else 0, 0) for dimension in range(x.ndim)]
    return lax.pad(x, jnp.zeros((), x.dtype), padding).reshape(*x.shape[:axis], blocks, block_size, *x.shape[axis + 1 :])


def from_code(code: jax.Array, dtype: np.dtype) -> jax.Array:
    """The numbers of a narrow `dtype` from their codes, which a CPU stores first if a byte holds two of them.

    XLA:CPU does not vectorize a loop that writes 4-bit numbers. So that loop does nothing else.
    """
    if narrow_floats.format_of(dtype).bits < 8:
        code = materialize.stored_on_cpu(code)
    return narrow_floats.from_code(code, dtype)
