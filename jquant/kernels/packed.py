"""Packs a matrix into a `PackedMatrix` or a `PackedBlockMatrix`."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import exact, packed_int4, signs
from jquant.lowering import materialize
from jquant.packed.block_matrix import Layout, PackedBlockMatrix, layout_for, zero_point_data_type
from jquant.packed.matrix import PackedMatrix

LARGEST_BLOCK, SMALLEST_BLOCK = 256, 32


def pack(b: jax.Array, zero_point: jax.Array | None, block_size: int) -> PackedMatrix:
    """`b` of shape (..., K, N), its zero point of shape (..., 1, 1) or (..., 1, N), in blocks that divide K."""
    data = signs.to_int8(b)
    *batch, k, n = b.shape
    blocks = data.reshape(*batch, k // block_size, block_size, n)
    if zero_point is not None:
        zero_point = jnp.broadcast_to(zero_point, (*batch, *zero_point.shape[-2:]))
    block_sums = jnp.sum(blocks, axis=-2, dtype=jnp.int32)
    return PackedMatrix(jnp.swapaxes(data, -1, -2), block_sums, zero_point, np.dtype(b.dtype))


def block_size_for(k: int) -> int:
    """The largest divisor of `k` from `SMALLEST_BLOCK` to `LARGEST_BLOCK`, or `k` itself if there is none."""
    return next((size for size in range(LARGEST_BLOCK, SMALLEST_BLOCK - 1, -1) if k % size == 0), max(k, 1))


def pack_blocks(
    b: jax.Array,
    scale: jax.Array,
    zero_point: jax.Array | None,
    minimum: jax.Array | None,
    block_size: int,
    layout: Layout | None = None,
) -> PackedBlockMatrix:
    """`b` of shape (..., K, N), with its scales, zero points and minima of shape (..., G, N).

    `layout` must not be K-major; None stands for `layout_for`.
    """
    *batch, k, _ = b.shape
    layout = layout_for(b.dtype, block_size) if layout is None else layout
    padding = scale.shape[-2] * block_size - k
    widths = [(0, 0)] * len(batch) + [(0, padding), (0, 0)]
    if layout == Layout.WORDS:
        unsigned = (b.astype(jnp.int8) + np.int8(8 if b.dtype == jnp.int4 else 0)).astype(jnp.uint16)
        data = packed_int4.packed(jnp.pad(unsigned, widths))
    else:
        data = jnp.pad(signs.to_int8(b) if b.dtype == jnp.uint8 else b.astype(jnp.int8), widths)
        if jnp.iinfo(b.dtype).bits < 8:  # XLA:GPU fails to compile slices of 4-bit integers
            data = materialize.stored(data)
    if zero_point is not None:
        zero_point = jnp.broadcast_to(zero_point.astype(zero_point_data_type(b.dtype)), scale.shape)
    return PackedBlockMatrix(
        data=data,
        scale=_as_given(scale),
        zero_point=zero_point,
        minimum=None if minimum is None else _as_given(minimum),
        dtype=jnp.dtype(b.dtype),
        block_size=block_size,
        padding=padding,
        layout=layout,
    )


def pack_codes(codes: jax.Array, scale: jax.Array, block_size: int) -> PackedBlockMatrix:
    """The matrix of twice the floats of these codes, uint8, in `Layout.CODES`, where whole words fill a block."""
    *batch, k, _ = codes.shape
    padding = scale.shape[-2] * block_size - k
    codes = jnp.pad(codes.astype(jnp.uint16), [(0, 0)] * len(batch) + [(0, padding), (0, 0)])
    return PackedBlockMatrix(
        data=packed_int4.packed(codes),
        scale=_as_given(scale),
        zero_point=None,
        minimum=None,
        dtype=np.dtype(np.int8),
        block_size=block_size,
        padding=padding,
        layout=Layout.CODES,
    )


def _as_given(x: jax.Array) -> jax.Array:
    """`x`, floats, without a weak type, and sealed from what a caller's program computes them from."""
    return lax.convert_element_type(exact.narrow(exact.widen(x), x.dtype), x.dtype)
