"""Products with block scales on TPUs, in Pallas: compiled for v5e, v5p, v6e and 7x, and interpreted; not run on a TPU.

Each block of K has its own product in int32, which is scaled and added to those before it, in order. The sums of a block of
the output stay in vector memory from the first block of K to the last. 4-bit weights are unpacked to bytes there.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jquant.arithmetic import exact, packed_int4, signs
from jquant.kernels import xla_blocks
from jquant.kernels import zero_point as zero_points
from jquant.kernels.batch import join_rows
from jquant.kernels.pallas.tpu import current_chip, require_sizes
from jquant.kernels.pallas.tpu_block_tiles import BlockTileConfig, config_for
from jquant.kernels.pallas.tpu_tiles import LANES
from jquant.packed.block_matrix import Layout, PackedBlockMatrix

_LARGEST_BLOCK_OF_BYTES = 256  # sums of 255 * 255 over it, less than 2**24, are exact in float32 with zero points


def block_dot(
    a: jax.Array,
    a_zero_point: jax.Array | None,
    b: PackedBlockMatrix,
    *,
    config: BlockTileConfig | None = None,
    interpret: Any = False,
) -> jax.Array:
    """The sum over the blocks g, in order, of ``fl(fl((A - a_zero_point)[:, g] @ (B - zero_point)[g]) * scale[g])``.

    Args:
      a: int8 or uint8, of shape (..., M, K).
      a_zero_point: of the dtype of `a`, of shape (..., M, 1) or (..., 1, 1), or None.
      b: of shape (..., K, N), in whole blocks. Batch sizes of 1 broadcast.
      config: the tile configuration; by default that for `current_chip` and the shapes.
      interpret: whether to interpret the kernel if there is no TPU; or how (`pltpu.InterpretParams`).

    Returns:
      float32, of shape (..., M, N).

    Raises:
      NotImplementedError: there are no tile configurations for the chip or for the blocks; blocks have a minimum; or a size
        is 0 or symbolic.
    """
    _check(a, b)
    b = b.n_minor()
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    m, k, n = a.shape[-2], *b.shape[-2:]
    joined = join_rows(a, b, a_zero_point, batch)
    if joined is not None:
        a, b, a_zero_point = jax.tree.map(lambda x: x.reshape(x.shape[1:]), joined)
    a_zero_point = zero_points.shifted(a_zero_point, a.dtype, a.ndim)
    a = signs.to_int8(a)
    a_zeros = None if a_zero_point is None else jnp.broadcast_to(a_zero_point.astype(jnp.int8), a.shape)
    if config is None:
        config = config_for(current_chip(), a.shape[-2], k, n, b.block_size, 4 if b.layout == Layout.WORDS else 8)
    return _matmul(a, a_zeros, b, config, interpret).reshape(*batch, m, n)


def _matmul(
    a: jax.Array, a_zeros: jax.Array | None, b: PackedBlockMatrix, config: BlockTileConfig, interpret: Any
) -> jax.Array:
    """`block_dot` of int8 `a`, whose zero points, `a_zeros`, have its shape."""
    scale, zero_point, dtype, block_size = exact.widen(b.scale), b.zero_point, b.dtype, b.block_size
    if dtype == jnp.uint8:  # `data` stores 128 less
        zero_point = signs.to_int8(jnp.zeros(scale.shape, jnp.uint8) if zero_point is None else zero_point)
    if zero_point is not None:
        zero_point = zero_point.astype(jnp.int8)
    *a_batch, m, _ = a.shape
    if config.stacked:  # pad few rows to whole registers
        a, a_zeros = jax.tree.map(lambda x: _pad(x, -2, config.block_m), (a, a_zeros))
    output = jax.eval_shape(xla_blocks.stand_in, a, a_zeros, b)
    data = b.data
    *b_batch, blocks, n = scale.shape
    batch = jnp.broadcast_shapes(tuple(a_batch), tuple(b_batch))
    per_step = config.block_k // block_size
    steps = pl.cdiv(blocks, per_step)
    grid = (*batch, pl.cdiv(m, config.block_m), pl.cdiv(n, config.block_n), steps)

    operands: dict[str, tuple[jax.Array, pl.BlockSpec]] = {}

    def add(name: str, x: jax.Array | None, block: tuple[int | None, ...], place: Callable):
        if x is not None:
            operands[name] = x, _block_spec(x.shape, len(batch), block, place)

    a_and_zeros = [x for x in (a, a_zeros) if x is not None]
    if config.stacked:
        a = jnp.concatenate([_stacked(x, config, block_size) for x in a_and_zeros], axis=-2)
        add("a", a, (config.block_k // config.depth, *a.shape[-2:]), lambda i, j, s: (s, 0, 0))
    else:
        a = jnp.stack([_split_axis(x, -1, blocks) for x in a_and_zeros], axis=-2).reshape(*a_batch, m, -1)
        add("a", a, (config.block_m, config.block_k * len(a_and_zeros)), lambda i, j, s: (i, s))
    add("b", data, (config.block_k * data.shape[-2] // (blocks * block_size), config.block_n), lambda i, j, s: (s, j))
    for name, x in (("scale", scale), ("zero_point", zero_point)):
        if x is not None:
            x = _pad(x, -2, steps * per_step).reshape(*x.shape[:-2], steps, per_step, n)
            add(name, x, (None, per_step, config.block_n), lambda i, j, s: (s, 0, j))
    arrays, specs = zip(*operands.values(), strict=True)

    def kernel(*refs):
        *refs, out_ref = refs
        _kernel(
            dict(zip(operands, refs, strict=True)),
            out_ref,
            step=pl.program_id(len(grid) - 1),
            blocks=blocks,
            block_size=block_size,
            config=config,
            dtype=dtype,
            offset=b.offset,
            has_a_zeros=a_zeros is not None,
            rounded=exact.seal if interpret else lambda x: x,
        )

    result = pl.pallas_call(
        kernel,
        out_shape=output,
        grid=grid,
        in_specs=specs,
        out_specs=_block_spec(output.shape, len(batch), (config.block_m, config.block_n), lambda i, j, s: (i, j)),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(*[pltpu.PARALLEL] * (len(grid) - 1), pltpu.ARBITRARY),
            vmem_limit_bytes=config.vmem_limit_bytes,
        ),
        interpret=interpret,
        name="block_dot",
    )(*arrays)
    return result[..., :m, :]


def _check(a: jax.Array, b: PackedBlockMatrix) -> None:
    if b.minimum is not None:
        raise NotImplementedError("the TPU kernel takes blocks with zero points or without, not with a minimum")
    if b.dtype in (jnp.int8, jnp.uint8) and b.block_size > _LARGEST_BLOCK_OF_BYTES:
        raise NotImplementedError(
            f"the TPU kernel multiplies by {b.dtype} in blocks of at most {_LARGEST_BLOCK_OF_BYTES}, not {b.block_size}"
        )
    require_sizes(a.shape, b.shape)


def _block_spec(shape: tuple[int, ...], n_batch: int, block: tuple[int | None, ...], place: Callable) -> pl.BlockSpec:
    """Blocks of one matrix of a batch: block ``place(row, column, step)`` for each grid step. Batch sizes of 1 broadcast."""
    sizes = shape[: len(shape) - len(block)]

    def index_map(*indices):
        batch = indices[n_batch - len(sizes) : n_batch]
        return (*(i if size > 1 else 0 for i, size in zip(batch, sizes, strict=True)), *place(*indices[n_batch:]))

    return pl.BlockSpec((*[None] * len(sizes), *block), index_map)


def _pad(x: jax.Array, axis: int, size: int) -> jax.Array:
    """`x` with zeros behind, up to `size` elements along `axis`."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return jnp.pad(x, widths) if any(widths[axis]) else x


def _split_axis(x: jax.Array, axis: int, parts: int) -> jax.Array:
    """`x` with one dimension split into equal `parts`, which get a dimension before it."""
    axis %= x.ndim
    return x.reshape(*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :])


def _stacked(a: jax.Array, config: BlockTileConfig, block_size: int) -> jax.Array:
    """The rows of A, once for each block of a `depth`, with zeros for the other blocks: (..., depths, rows, depth)."""
    *batch, _, k = a.shape
    count = config.depth // block_size
    a = _pad(a, -1, pl.cdiv(k, config.depth) * config.depth)
    a = jnp.moveaxis(a.reshape(*batch, config.block_m, -1, 1, count, block_size), -5, -3)
    own = jnp.eye(count, dtype=jnp.int8)[:, None, :, None]
    own = own.reshape(*(1,) * (a.ndim - own.ndim), *own.shape)
    return (a * own).reshape(*batch, -1, count * config.block_m, config.depth)


def _kernel(
    refs: dict[str, Any],
    out_ref,
    *,
    step,
    blocks: int,
    block_size: int,
    config: BlockTileConfig,
    dtype,
    offset,
    has_a_zeros,
    rounded,
):
    """One grid step: some blocks of K, for a block of the output.

    Args:
      refs: the blocks of "a", "b" and "scale"; and of "zero_point", if there is any.
      out_ref: the block of the output.
      step: the index of the step along K.
      blocks: the number of blocks in all of K.
      block_size: the rows of B that share a scale.
      config: the tile configuration.
      dtype: that of B.
      offset: how much more B stores than its integers, if it stores words.
      has_a_zeros: whether zero points are below the rows of A or, if these are not stacked, behind each block of K.
      rounded: keeps a product from being merged with the sum after it. Mosaic merges none by itself.
    """
    a_ref, b_ref, scale_ref = refs["a"], refs["b"], refs["scale"]
    has_b_zeros = "zero_point" in refs
    per_step, per_depth = config.block_k // block_size, config.depth // block_size
    steps = pl.cdiv(blocks, per_step)
    is_words, is_bytes = b_ref.dtype == jnp.uint16, dtype in (jnp.int8, jnp.uint8)
    # The difference of two bytes is not a byte; and for few rows, it takes less to correct the products than the weights.
    corrects_products = has_b_zeros and (is_bytes or config.stacked)
    corrects_weights = has_b_zeros and not corrects_products

    def weights(depth: int, columns) -> jax.Array:
        """One `depth` of B, in int8; or less its zero points, if they are subtracted from the weights, in int32."""
        start = depth * config.depth
        if not is_words:
            b = b_ref[start : start + config.depth, columns]
        else:
            b = b_ref[start // packed_int4.PER_WORD : (start + config.depth) // packed_int4.PER_WORD, columns]
            if offset and not corrects_weights:  # int4 plus 8 is int4 with its highest bit flipped
                b = pltpu.bitcast(b ^ packed_int4.SIGN_BITS, jnp.int4)
            else:
                b = pltpu.bitcast(b, jnp.uint4)
        if corrects_weights:
            first = depth * per_depth
            zeros = refs["zero_point"][:, columns].astype(jnp.int32) + offset
            parts = jnp.split(b.astype(jnp.int32), per_depth)
            return jnp.concatenate([part - zeros[first + g : first + g + 1] for g, part in enumerate(parts)])
        return b.astype(jnp.int8)

    def products(depth: int, b: jax.Array) -> list[jax.Array]:
        """For each block of a `depth`, the product of A, less the zero points of A, and `b`."""
        if config.stacked:
            product = _dot(a_ref[depth], b)
            if has_a_zeros:
                product, zeros_product = jnp.split(product, 2)
                product -= zeros_product
            return jnp.split(product, per_depth)
        width = 2 * block_size if has_a_zeros else block_size
        first = depth * per_depth
        return [
            product_of_block(a_ref[:, g * width : (g + 1) * width], part)
            for g, part in enumerate(jnp.split(b, per_depth), first)
        ]

    def product_of_block(a: jax.Array, b: jax.Array) -> jax.Array:
        if not has_a_zeros:
            return _dot(a, b)
        if is_bytes:  # the negation of which may not be a byte
            return _dot(a[:, :block_size], b) - _dot(a[:, block_size:], b)
        # A block fills at most half of the depth of the matrix unit, so that the other product takes no time.
        b = b.astype(jnp.int32)
        return _dot(a, jnp.concatenate([b, -b]))

    def add(count: int):
        """Adds the first `count` blocks of this step to the output."""
        depths = range(pl.cdiv(count, per_depth))
        row_sums, zeros = [], None
        if corrects_products:  # by the row sums of A, on all lanes, which the matrix unit computes in no additional time
            ones = jnp.ones((config.depth, LANES), jnp.int8)
            row_sums = [row_sum.astype(jnp.float32) for depth in depths for row_sum in products(depth, ones)]
        for columns in _slices(config.block_n, config.columns_at_once):
            total = None if steps == 1 else out_ref[:, columns]
            if corrects_products:
                zeros = refs["zero_point"][:, columns].astype(jnp.float32)
            values = (value for depth in depths for value in products(depth, weights(depth, columns)))
            for g, value in zip(range(count), values, strict=False):
                value = value.astype(jnp.float32)
                if zeros is not None:  # integers below 2**24, so that each step is exact
                    value -= jnp.tile(row_sums[g], (1, columns.size // LANES)) * zeros[g : g + 1]
                term = rounded(value * scale_ref[g : g + 1, columns])
                total = term if total is None else total + term
            out_ref[:, columns] = total

    if steps > 1:

        @pl.when(step == 0)
        def _start():
            # The sum of -0.0 and x is x, even if that is -0.0, so that the first term needs no separate program.
            out_ref[...] = jnp.full_like(out_ref, -0.0)

    rest = blocks - (steps - 1) * per_step
    if rest == per_step:
        add(per_step)
    else:
        pl.when(step < steps - 1)(functools.partial(add, per_step))
        pl.when(step == steps - 1)(functools.partial(add, rest))


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """``a @ b`` in int32, of int8 `a` and integers `b` that fit into int8."""
    return lax.dot_general(a, b.astype(jnp.int8), (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)


def _slices(size: int, at_once: int) -> list[pl.Slice]:
    return [pl.Slice(start, min(at_once, size - start)) for start in range(0, size, at_once)]
