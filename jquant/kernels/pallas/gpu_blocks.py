"""Products with block scales on Hopper GPUs (H100, H200), as a Pallas Mosaic GPU kernel.

Compiled for an H200 and simulated, but not run on one.

The product is computed transposed, as weights by activations: `wgmma` takes its left operand from registers, where 4-bit
weights are unpacked to bytes. Each block of K has its own product in int32, which is scaled and added to those before it, in
order; these sums stay in registers from the first block to the last. As in `gpu`, one block of threads for each
multiprocessor goes through the tiles of the output, and one of its warpgroups loads what the others multiply.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jquant.arithmetic import exact, signs
from jquant.kernels import zero_point as zero_points
from jquant.kernels.batch import with_one_batch_axis
from jquant.kernels.pallas import _compat, gpu_block_tiles, hopper
from jquant.kernels.pallas.gpu_block_tiles import BlockTileConfig, Steps
from jquant.kernels.pallas.gpu_product import rounded_product
from jquant.kernels.pallas.gpu_tiles import PIECE_M, ROW_ALIGNMENT
from jquant.kernels.pallas.hopper import BLOCK, WARPGROUP
from jquant.lowering.bitcast import bitcast
from jquant.packed.block_matrix import Layout, PackedBlockMatrix

_LOADING_REGISTERS = 64  # per thread, which loads up to seven arrays; those that multiply share the others


def block_dot(
    a: jax.Array,
    a_zero_point: jax.Array | None,
    b: PackedBlockMatrix,
    *,
    config: BlockTileConfig | None = None,
    interpret: Any = None,
) -> jax.Array:
    """The sum over the blocks g, in order, of ``fl(fl((A - a_zero_point)[:, g] @ (B - zero_point)[g]) * scale[g])``.

    Args:
      a: int8 or uint8, of shape (..., M, K).
      a_zero_point: of the dtype of `a`, of shape (..., M, 1) or (..., 1, 1), or None.
      b: of shape (..., K, N), in whole blocks. Batch sizes of 1 broadcast. A K-major layout saves a transposition.
      config: the tile configuration; by default that of `gpu_block_tiles.config_for`.
      interpret: parameters of Pallas' GPU simulator, to run on a CPU.

    Returns:
      float32, of shape (..., M, N).

    Raises:
      NotImplementedError: blocks of another size or with a minimum, empty matrices, symbolic sizes, or a GPU other than a
        Hopper.
      ValueError: a tile configuration that the kernel does not support.
    """
    _check(a, b)
    if interpret is None:
        hopper.require_hopper()
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    a, b, a_zero_point = with_one_batch_axis(a, b, a_zero_point, batch)
    operands = _operands(a, a_zero_point, b)
    steps, bits, terms = gpu_block_tiles.steps_for(b.block_size), _bits(operands.b), len(operands.terms)
    if config is None:
        (a_batch, m, k), (b_batch, n, _) = operands.a.shape, operands.b.shape
        config = gpu_block_tiles.config_for(max(a_batch, b_batch), m, n, k, b.block_size, bits, terms)
    gpu_block_tiles.check(config, steps, bits, terms)
    return jnp.swapaxes(_padded_call(operands, steps, config, interpret), -1, -2).reshape(shape)


def _check(a: jax.Array, b: PackedBlockMatrix) -> None:
    if b.minimum is not None:
        raise NotImplementedError("the Hopper kernel takes blocks with zero points or without, not with a minimum")
    if b.block_size not in gpu_block_tiles.BLOCK_SIZES:
        sizes = ", ".join(map(str, gpu_block_tiles.BLOCK_SIZES))
        raise NotImplementedError(f"the Hopper kernel takes blocks of {sizes}, not {b.block_size}")
    hopper.require_sizes(a.shape, b.shape)


def _bits(x: Any) -> int:
    return 4 if x.dtype == jnp.int4 else 8


class _Operands(NamedTuple):
    """The factors, the scales, and the terms that zero points subtract from the product of each block.

    Attributes:
      a: int8, of shape (batch or 1, M, K).
      b: int8 or int4, of shape (batch or 1, N, K).
      scale: float32, of shape (batch or 1, G, N).
      terms: pairs of vectors whose outer products are subtracted from a block's product: int32, of shapes
        (batch or 1, G, M) and (batch or 1, G, N).
    """

    a: jax.Array
    b: jax.Array
    scale: jax.Array
    terms: tuple[tuple[jax.Array, jax.Array], ...]


def _operands(a: jax.Array, a_zero_point: jax.Array | None, b: PackedBlockMatrix) -> _Operands:
    """The operands of ``(A - za)(B - zb)``, which for each block is ``A B - (rowsum(A) - size * za) zb - za colsum(B)``."""
    b = b.k_major()
    size, scale, integers = b.block_size, exact.widen(b.scale), _integers(b)
    if b.zero_point is None:
        b_offset = jnp.full(scale.shape, b.offset, jnp.int32) if b.offset else None
    else:
        b_offset = b.zero_point.astype(jnp.int32) + np.int32(b.offset)
    a_offset = zero_points.shifted(a_zero_point, a.dtype, a.ndim)
    a = signs.to_int8(a)
    blocks = (*a.shape[:-1], scale.shape[-2])
    terms = []
    if b_offset is not None:
        row_sums = _sums(a, size)
        terms.append((row_sums if a_offset is None else row_sums - size * a_offset, b_offset))
    if a_offset is not None:
        terms.append((jnp.broadcast_to(a_offset, blocks), jnp.swapaxes(_sums(integers, size), -1, -2)))
    return _Operands(a, integers, scale, tuple((jnp.swapaxes(rows, -1, -2), columns) for rows, columns in terms))


def _integers(b: PackedBlockMatrix) -> jax.Array:
    """The integers that a K-major `b` stores, as int4 or int8."""
    if b.layout == Layout.K_MAJOR_BYTES:
        return b.data
    return bitcast(b.data, jnp.int4).reshape(*b.data.shape[:-1], -1)


def _sums(x: jax.Array, size: int) -> jax.Array:
    """The sum of each block of the last dimension."""
    return jnp.sum(x.reshape(*x.shape[:-1], -1, size), axis=-1, dtype=jnp.int32)


def _padded_call(operands: _Operands, steps: Steps, config: BlockTileConfig, interpret: Any) -> jax.Array:
    """The product, (batch, N, M), of operands padded to whole steps of K and for TMA; the padding is removed from it."""
    m, n = operands.a.shape[1], operands.b.shape[1]
    a, b = (_padded(x, ROW_ALIGNMENT, steps.step_k) for x in (operands.a, operands.b))
    # A padding block contributes -0, the one number that changes no sum.
    scale = _padded(operands.scale, steps.blocks, ROW_ALIGNMENT, -0.0)
    terms = jax.tree.map(lambda x: _padded(x, steps.blocks, ROW_ALIGNMENT), operands.terms)
    if steps.parts > 1:
        a = _separated(a, steps)
    m_padded = pl.cdiv(m, config.epilogue_m) * config.epilogue_m  # TMA stores whole pieces
    out_type = jax.ShapeDtypeStruct((max(len(a), len(b)), b.shape[1], m_padded), jnp.float32)
    return _call(a, b, scale, terms, out_type, steps, config, interpret)[:, :n, :m]


def _padded(x: jax.Array, rows: int, columns: int, fill: float = 0) -> jax.Array:
    """`x` of shape (batch, rows, columns), padded to multiples of `rows` and `columns`."""
    widths = [(0, 0), (0, -x.shape[1] % rows), (0, -x.shape[2] % columns)]
    return jnp.pad(x, widths, constant_values=fill) if any(after for _, after in widths) else x


def _separated(a: jax.Array, steps: Steps) -> jax.Array:
    """`a` with a separate `depth` for each block, which is at its place there, with zeros for the other blocks."""
    batch, m, _ = a.shape
    own = jnp.eye(steps.parts, dtype=jnp.int8).reshape(1, 1, 1, steps.parts, steps.parts, 1)
    return (a.reshape(batch, m, -1, 1, steps.parts, steps.depth // steps.parts) * own).reshape(batch, m, -1)


def _call(
    a, b, scale, terms, out_type: jax.ShapeDtypeStruct, steps: Steps, config: BlockTileConfig, interpret: Any
) -> jax.Array:
    batch, n, m = out_type.shape
    tiles = batch * pl.cdiv(n, config.tile_n) * pl.cdiv(m, config.tile_m)
    # The simulator runs no assembly.
    product = rounded_product if interpret is None else exact.product
    kernel = plgpu.kernel(
        functools.partial(_kernel, steps=steps, config=config, product=product),
        out_type=out_type,
        grid=(min(tiles, config.blocks),),
        grid_names=(BLOCK,),
        num_threads=config.warpgroups + 1,
        thread_name=WARPGROUP,
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        interpret=interpret,
    )
    return kernel(a, b, scale, *jax.tree.leaves(terms))


# ---------------------------------------------------------------------------------------------------------------------
# The kernel. A (batch or 1, M, K * steps.parts), B (batch or 1, N, K), scales (batch or 1, G, N), terms, alternately
# (batch or 1, G, M) and (batch or 1, G, N), output (batch, N, M).


def _kernel(*refs: Any, steps: Steps, config: BlockTileConfig, product: Callable) -> None:
    *inputs, output = refs
    _, b, _, *terms = inputs
    batch, n, m = output.shape
    grid = pl.cdiv(n, config.tile_n), pl.cdiv(m, config.tile_m)
    pieces = range(0, config.tile_m, config.epilogue_m)
    buffers = gpu_block_tiles.output_buffers(config)

    def pipeline(multiply, context):
        def integers(rows, columns, bits):
            return plgpu.BlockSpec((rows, columns), lambda k: (0, k), transforms=hopper.swizzled(steps.depth, bits))

        def vectors(columns):
            return plgpu.BlockSpec((steps.blocks, columns), lambda k: (k, 0))

        blocks = [
            integers(config.tile_m, steps.step_k * steps.parts, 8),
            integers(config.tile_n, steps.step_k, _bits(b)),
            vectors(config.tile_n),
            *[vectors(config.loaded_m), vectors(config.tile_n)] * (len(terms) // 2),
        ]
        return plgpu.emit_pipeline_warp_specialized(
            multiply,
            grid=(b.shape[-1] // steps.step_k,),
            in_specs=blocks,
            max_concurrent_steps=config.stages,
            wg_axis=WARPGROUP,
            num_compute_wgs=config.warpgroups,
            memory_registers=_LOADING_REGISTERS,
            compute_context=context,
        )

    @functools.partial(
        pl.run_scoped,
        loaded=pipeline(hopper.nothing, hopper.nothing).get_allocations(*(x.at[0] for x in inputs)),
        outputs=plgpu.SMEM(
            (config.warpgroups, buffers, PIECE_M, config.epilogue_m),
            output.dtype,
            transforms=hopper.swizzled(config.epilogue_m, 32),
        ),
        collective_axes=WARPGROUP,
    )
    def _(loaded, outputs):
        warpgroup = lax.axis_index(WARPGROUP)
        own = pl.ds(warpgroup * PIECE_M, PIECE_M)

        @plgpu.nd_loop((batch, math.prod(grid)), collective_axes=BLOCK)
        def _(loop):
            index, tile = loop.index
            i, j = hopper.snake(tile, grid, config.group_n)
            top, left = i * config.tile_n, j * config.tile_m

            def multiply(_, a_block, b_block, scale, *terms_and_total):
                *terms, total = terms_and_total
                for block in range(steps.blocks):
                    sums = _product(a_block, b_block, own, block, steps, config)
                    for rows, columns in zip(terms[::2], terms[1::2], strict=True):
                        factors = _column(columns, block, own, sums.shape), _row(rows, block, sums.shape)
                        sums = sums - factors[0] * factors[1]
                    total = total + product(sums.astype(jnp.float32), _column(scale, block, own, sums.shape))
                # TMA writes the next step to where registers were loaded from: a fence orders the two.
                plgpu.commit_smem()
                return total

            def compute(multiply_all):
                start = jnp.full((PIECE_M, config.tile_m), -0.0, jnp.float32)  # the sum of -0 and a term is the term
                total = multiply_all(plgpu.layout_cast(start, plgpu.Layout.WGMMA))
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                for number, start in enumerate(pieces):
                    buffer = outputs.at[warpgroup, number % buffers]
                    plgpu.wait_smem_to_gmem(buffers - 1, wait_read_only=True)
                    buffer[...] = total[:, start : start + config.epilogue_m]
                    plgpu.commit_smem()
                    place = pl.ds(top + warpgroup * PIECE_M, PIECE_M), pl.ds(left + start, config.epilogue_m)
                    plgpu.copy_smem_to_gmem(buffer, output.at[index].at[place])

            along_m, along_n = (slice(None), pl.ds(left, config.loaded_m)), (slice(None), pl.ds(top, config.tile_n))
            places = pl.ds(left, config.tile_m), pl.ds(top, config.tile_n), along_n, *(along_m, along_n) * (len(terms) // 2)
            matrices = (ref.at[0 if ref.shape[0] == 1 else index] for ref in inputs)
            tiles = (ref.at[place] for ref, place in zip(matrices, places, strict=True))
            pipeline(multiply, compute)(*tiles, allocations=loaded)

        plgpu.wait_smem_to_gmem(0, wait_read_only=True)


def _product(a_block: Any, b_block: Any, own: Any, block: int, steps: Steps, config: BlockTileConfig) -> jax.Array:
    """The product of one block of K, in int32, of shape (PIECE_M, tile_m)."""
    depths = max(steps.step_k // steps.blocks // steps.depth, 1)

    @functools.partial(pl.run_scoped, accumulator=plgpu.WGMMAAccumulatorRef((PIECE_M, config.tile_m), jnp.int32))
    def product(accumulator):
        for number in range(block * depths, (block + 1) * depths):
            place = pl.ds(number // steps.parts * steps.depth, steps.depth)
            weights = _compat.load(b_block, (own, place), plgpu.Layout.WGMMA_8BIT).astype(jnp.int8)
            activations = a_block.at[:, pl.ds(number * steps.depth, steps.depth)]
            plgpu.wgmma(accumulator, weights, _compat.transposed(activations))
        return accumulator[...]

    return product


def _column(ref: Any, block: int, own: Any, shape: tuple[int, ...]) -> jax.Array:
    """A vector along N, broadcast to the product of a block."""
    return lax.broadcast_in_dim(_compat.load(ref, (block, own), plgpu.Layout.WGMMA.reduce(1)), shape, (0,))


def _row(ref: Any, block: int, shape: tuple[int, ...]) -> jax.Array:
    """A vector along M, broadcast to the product of a block."""
    place = block, pl.ds(0, shape[1])
    return lax.broadcast_in_dim(_compat.load(ref, place, plgpu.Layout.WGMMA.reduce(0)), shape, (1,))
