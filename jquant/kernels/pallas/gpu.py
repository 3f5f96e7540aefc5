"""The integer product for Hopper GPUs (H100, H200), with its epilogue, as a Pallas Mosaic GPU kernel.

Compiled for an H200 and simulated, but not run on one.

One block of threads for each multiprocessor goes through the tiles of the output. In a block, one warpgroup loads the
operands to shared memory (TMA), `stages` steps of K ahead. The others multiply them (`wgmma`), each its share of the rows,
and then apply the epilogue and store the output piece by piece, while the loads of the next tile begin.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jquant.kernels import epilogue as epilogues
from jquant.kernels.batch import with_one_batch_axis
from jquant.kernels.epilogue import Epilogue
from jquant.kernels.pallas import _compat, gpu_tiles, hopper
from jquant.kernels.pallas.gpu_tiles import PIECE_M, ROW_ALIGNMENT, TileConfig
from jquant.kernels.pallas.hopper import BLOCK, WARPGROUP

_LOADING_REGISTERS = 40  # per thread that loads; those that multiply share the others


def integer_dot(
    a: jax.Array,
    b: jax.Array,
    epilogue: Epilogue = (),
    *,
    transpose_b: bool = False,
    config: TileConfig | None = None,
    interpret: Any = None,
) -> jax.Array:
    """``epilogue(a @ b)``, the product in int32: `xla.integer_dot`, bit for bit.

    Args:
      a: int8, of shape (..., M, K).
      b: int8, of shape (..., K, N), or (..., N, K) with `transpose_b`, which saves a transposition. Batch sizes of 1
        broadcast.
      epilogue: the steps that follow, whose arrays have the rank of `a`. From the first step on that has a separate value
        for each element of the output, they run in XLA, after the kernel.
      config: the tile configuration; by default that of `gpu_tiles.config_for`.
      interpret: parameters of Pallas' GPU simulator, to run on a CPU.

    Returns:
      An array of shape (..., M, N), of the epilogue's dtype.

    Raises:
      NotImplementedError: operands that are not int8, empty matrices, symbolic sizes, or a GPU other than a Hopper.
      ValueError: a tile configuration that the kernel does not support.
    """
    _check_operands(a, b)
    if interpret is None:
        hopper.require_hopper()
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    fused = _fusible(epilogue, batch)
    if fused < len(epilogue):
        options = {"transpose_b": transpose_b, "config": config, "interpret": interpret}
        return epilogues.apply(epilogue[fused:], integer_dot(a, b, epilogue[:fused], **options))

    b = b if transpose_b else jnp.swapaxes(b, -1, -2)
    shape = (*batch, a.shape[-2], b.shape[-2])
    dtype = jax.eval_shape(functools.partial(epilogues.apply, epilogue), jax.ShapeDtypeStruct(shape, jnp.int32)).dtype
    leaves, structure = jax.tree.flatten(epilogue)
    a, b, leaves = with_one_batch_axis(a, b, leaves, batch)
    if config is None:
        config = gpu_tiles.config_for(max(len(a), len(b)), a.shape[1], b.shape[1], a.shape[2], dtype.itemsize)
    gpu_tiles.check(config, dtype.itemsize)
    return _padded_call(a, b, leaves, structure, dtype, config, interpret).reshape(shape)


def _check_operands(a: jax.Array, b: jax.Array) -> None:
    if not a.dtype == b.dtype == jnp.int8:
        raise NotImplementedError(f"the Hopper kernel multiplies int8 by int8, not {a.dtype} by {b.dtype}")
    hopper.require_sizes(a.shape, b.shape)


def _fusible(epilogue: Epilogue, batch: tuple[int, ...]) -> int:
    """The number of leading steps that have only scalars and vectors, which the kernel loads for a block of the product."""

    def is_vector(x: jax.Array) -> bool:
        broadcasts = all(size in (1, target) for size, target in zip(x.shape[:-2], batch, strict=True))
        return broadcasts and 1 in x.shape[-2:] and x.dtype in (jnp.int32, jnp.float32)

    fusible = (all(is_vector(x) for x in jax.tree.leaves(step)) for step in epilogue)
    return next((number for number, is_fusible in enumerate(fusible) if not is_fusible), len(epilogue))


def _padded_call(a, b, leaves, structure, dtype: jnp.dtype, config: TileConfig, interpret: Any) -> jax.Array:
    """The output, without the padding, of operands padded to what TMA can address and vectors padded to whole tiles."""
    m, n = a.shape[1], b.shape[1]
    a, b = (_padded(_padded(x, 1, ROW_ALIGNMENT), 2, config.block_k) for x in (a, b))
    vectors, roles = [], []
    for x in leaves:
        role = "scalar" if x.shape[1:] == (1, 1) else "row" if x.shape[2] == 1 else "column"
        tile = {"scalar": 1, "row": config.block_m, "column": config.block_n}[role]
        vectors.append(_padded(x.reshape(len(x), -1), 1, tile))
        roles.append(role)
    n_padded = math.ceil(n / config.epilogue_n) * config.epilogue_n
    out_type = jax.ShapeDtypeStruct((max(len(a), len(b)), a.shape[1], n_padded), dtype)
    return _call(a, b, vectors, structure, tuple(roles), out_type, config, interpret)[:, :m, :n]


def _padded(x: jax.Array, axis: int, multiple: int) -> jax.Array:
    """`x` with zeros behind, up to a multiple of elements along `axis`."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % multiple)
    return jnp.pad(x, widths)


def _call(a, b, vectors, structure, roles, out_type: jax.ShapeDtypeStruct, config: TileConfig, interpret: Any) -> jax.Array:
    batch, m, n = out_type.shape
    tiles = batch * math.ceil(m / config.block_m) * math.ceil(n / config.block_n)
    kernel = plgpu.kernel(
        functools.partial(_kernel, config=config, structure=structure, roles=roles),
        out_type=out_type,
        grid=(min(tiles, config.blocks),),
        grid_names=(BLOCK,),
        num_threads=config.warpgroups + 1,
        thread_name=WARPGROUP,
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        interpret=interpret,
    )
    return kernel(a, b, *vectors)


# ---------------------------------------------------------------------------------------------------------------------
# The kernel. A (batch or 1, M, K), B (batch or 1, N, K), vectors (batch or 1, M or N or 1), output (batch, M, N).


def _kernel(*refs: Any, config: TileConfig, structure: Any, roles: tuple[str, ...]) -> None:
    a, b, *vectors, output = refs
    batch, m, n = output.shape
    grid = pl.cdiv(m, config.block_m), pl.cdiv(n, config.block_n)
    rows = config.block_m // config.warpgroups
    steps = a.shape[-1] // config.block_k
    pieces = [(i, j) for i in range(0, rows, PIECE_M) for j in range(0, config.block_n, config.epilogue_n)]
    buffers = gpu_tiles.output_buffers(config)

    def pipeline(multiply, context):
        transforms = hopper.swizzled(config.block_k, 8 * a.dtype.itemsize)
        blocks = [
            plgpu.BlockSpec((size, config.block_k), lambda k: (0, k), transforms=transforms)
            for size in (config.block_m, config.block_n)
        ]
        return plgpu.emit_pipeline_warp_specialized(
            multiply,
            grid=(steps,),
            in_specs=blocks,
            max_concurrent_steps=config.stages,
            wg_axis=WARPGROUP,
            num_compute_wgs=config.warpgroups,
            memory_registers=_LOADING_REGISTERS,
            compute_context=context,
        )

    @functools.partial(
        pl.run_scoped,
        inputs=pipeline(hopper.nothing, hopper.nothing).get_allocations(a.at[0], b.at[0]),
        outputs=plgpu.SMEM(
            (config.warpgroups, buffers, PIECE_M, config.epilogue_n),
            output.dtype,
            transforms=hopper.swizzled(config.epilogue_n, 8 * output.dtype.itemsize),
        ),
        collective_axes=WARPGROUP,
    )
    def _(inputs, outputs):
        warpgroup = lax.axis_index(WARPGROUP)

        @plgpu.nd_loop((batch, math.prod(grid)), collective_axes=BLOCK)
        def _(loop):
            index, tile = loop.index
            i, j = hopper.snake(tile, grid, config.group_m)
            top, left = i * config.block_m, j * config.block_n
            own_top = top + warpgroup * rows

            def matrix(ref):
                return ref.at[0 if ref.shape[0] == 1 else index]

            def multiply(_, a_block, b_block, accumulator):
                own = a_block.at[pl.ds(warpgroup * rows, rows)]
                plgpu.wgmma(accumulator, own, _compat.transposed(b_block))
                # It must not run on into the next step: the next tile's loads may overwrite the buffers of the last step.
                plgpu.wgmma_wait(0)
                return accumulator

            def finish(product, i, j):
                starts = {"scalar": 0, "row": own_top + i, "column": left + j}
                blocks = [
                    _vector(matrix(x), role, starts[role], product.shape) for x, role in zip(vectors, roles, strict=True)
                ]
                return _compat.inlined(functools.partial(_epilogue, structure))(product, *blocks)

            def compute(multiply_all):
                @functools.partial(pl.run_scoped, accumulator=plgpu.WGMMAAccumulatorRef((rows, config.block_n), jnp.int32))
                def _(accumulator):
                    multiply_all(accumulator)
                    product = accumulator[...]
                    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                    for number, (i, j) in enumerate(pieces):
                        buffer = outputs.at[warpgroup, number % buffers]
                        plgpu.wait_smem_to_gmem(buffers - 1, wait_read_only=True)
                        buffer[...] = finish(product[i : i + PIECE_M, j : j + config.epilogue_n], i, j)
                        plgpu.commit_smem()
                        place = pl.ds(own_top + i, PIECE_M), pl.ds(left + j, config.epilogue_n)
                        plgpu.copy_smem_to_gmem(buffer, output.at[index].at[place])

            pipeline(multiply, compute)(
                matrix(a).at[pl.ds(top, config.block_m)],
                matrix(b).at[pl.ds(left, config.block_n)],
                allocations=inputs,
            )

        plgpu.wait_smem_to_gmem(0, wait_read_only=True)


def _vector(ref: Any, role: str, start: jax.Array | int, shape: tuple[int, int]) -> jax.Array:
    """The part of a vector that belongs to a piece of the product, broadcast to the piece, in its layout."""
    if role == "scalar":
        return lax.broadcast_in_dim(ref[0], shape, ())
    axis = 0 if role == "row" else 1
    block = _compat.load(ref, (pl.ds(start, shape[axis]),), plgpu.Layout.WGMMA.reduce(1 - axis))
    return lax.broadcast_in_dim(block, shape, (axis,))


def _epilogue(structure: Any, product: jax.Array, *blocks: jax.Array) -> jax.Array:
    return epilogues.apply_in_kernel(jax.tree.unflatten(structure, blocks), product)
