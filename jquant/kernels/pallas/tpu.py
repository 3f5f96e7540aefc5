"""The integer product on TPUs, in Pallas: compiled for v5e, v5p, v6e and 7x, and interpreted; not run on a TPU.

The grid is (..., M, N, K) in blocks, the last one innermost. The int32 sums of a block of the output stay in vector memory
from the first block of K to the last one, where the epilogue computes the output from them. If one block holds all of K, the
sums never leave the registers and the compiler's buffers.

Floats that are to become int8 do so in vector memory, at the first block of columns, and stay there for the other ones: each
is read and quantized once, and no int8 is written to memory. So these columns come one after another.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jquant.arithmetic import exact, integer_quotient
from jquant.kernels import epilogue as epilogues
from jquant.kernels import xla
from jquant.kernels.batch import join_rows
from jquant.kernels.epilogue import Dequantize, Epilogue
from jquant.kernels.float_rows import FloatRows, on_integers
from jquant.kernels.pallas import tpu_traffic
from jquant.kernels.pallas.tpu_tiles import LANES, ROWS, TileConfig, config_for

_ROW_AXIS, _COLUMN_AXIS, _SUM_AXIS = 0, 1, 2  # of the grid, after those of the batch
_QUANTIZED_AT_ONCE = 4 * LANES  # columns of floats: more would not fit in the registers


def integer_dot(
    a: jax.Array | FloatRows,
    b: jax.Array,
    epilogue: Epilogue = (),
    *,
    transpose_b: bool = False,
    config: TileConfig | None = None,
    interpret: Any = False,
) -> jax.Array:
    """``epilogue(a @ b)``, the product in int32.

    Args:
      a: int8, of shape (..., M, K); or floats, which the kernel quantizes where that moves fewer bytes of memory.
      b: int8, of shape (..., K, N), or (..., N, K) with `transpose_b`. Batch sizes of 1 broadcast.
      epilogue: the steps that follow, whose arrays have the rank of `a`.
      transpose_b: whether `b` is K-major, as packed weights are.
      config: the tile configuration; by default that for `current_chip` and the shapes. With one, the kernel quantizes.
      interpret: whether to interpret the kernel if there is no TPU; or how (`pltpu.InterpretParams`).

    Raises:
      NotImplementedError: there are no tile configurations for the chip, `a` or `b` is not int8, or a size is 0 or symbolic.
    """
    *steps, last = epilogue or (None,)
    if isinstance(last, Dequantize) and last.dtype == jnp.float16:
        # Mosaic does not store float16. Rounding to it is the last step of the epilogue, so it may follow the kernel.
        epilogue = (*steps, dataclasses.replace(last, dtype=jnp.dtype(jnp.float32)))
        return exact.narrow(
            integer_dot(a, b, epilogue, transpose_b=transpose_b, config=config, interpret=interpret), last.dtype
        )

    values, scales = (a.values, [a.scale]) if isinstance(a, FloatRows) else (a, [])
    _check(values, b, floats=bool(scales))
    reference = functools.partial(on_integers(xla.integer_dot), transpose_b=transpose_b)
    output = jax.eval_shape(reference, a, b, epilogue)
    *batch, m, n = output.shape
    k = a.shape[-1]
    arrays, structure = jax.tree.flatten(epilogue)
    leaves = [*scales, *arrays]
    joined = join_rows(values, b, leaves, batch) if math.prod(batch) > 1 else None
    if joined is not None:  # few rows in each of many batches would leave most of a block empty
        values, b, leaves = joined
        a, arrays = (FloatRows(values, leaves[0]), leaves[1:]) if scales else (values, leaves)
        options = {"transpose_b": transpose_b, "config": config, "interpret": interpret}
        return integer_dot(a, b, jax.tree.unflatten(structure, arrays), **options).reshape(output.shape)
    if config is None:
        sizes = m, k, n, output.dtype
        config = config_for(current_chip(), *sizes, tuple(leaf.shape[-2:] for leaf in leaves), values.dtype)
        if isinstance(a, FloatRows):
            of_integers = config_for(current_chip(), *sizes, tuple(leaf.shape[-2:] for leaf in arrays))
            if not _quantizes(a, batch, config, of_integers, n):
                options = {"transpose_b": transpose_b, "config": of_integers, "interpret": interpret}
                return integer_dot(a.quantized(), b, epilogue, **options)
    rows, columns, sums = (config.block_m, _ROW_AXIS), (config.block_n, _COLUMN_AXIS), (config.block_k, _SUM_AXIS)
    k_steps = pl.cdiv(k, config.block_k)
    scratch = [pltpu.VMEM((config.block_m, config.block_n), jnp.int32)] if k_steps > 1 else []
    if scales:
        scratch.append(pltpu.VMEM((k_steps, config.block_m, config.block_k), jnp.int8))
    return pl.pallas_call(
        functools.partial(
            _kernel_of_floats if scales else _kernel,
            k=k,
            k_axis=len(batch) + _SUM_AXIS,
            transpose_b=transpose_b,
            rows_at_once=config.rows_at_once,
            unflatten=structure.unflatten,
        ),
        out_shape=output,
        grid=(*batch, pl.cdiv(m, config.block_m), pl.cdiv(n, config.block_n), k_steps),
        in_specs=[
            _block_spec(values.shape, rows, sums, held=k_steps - 1 if scales else None),
            _block_spec(b.shape, columns, sums) if transpose_b else _block_spec(b.shape, sums, columns),
            *(_leaf_spec(leaf.shape, rows, columns) for leaf in leaves),
        ],
        out_specs=_block_spec(output.shape, rows, columns),
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(
                *[pltpu.PARALLEL] * (len(batch) + 1),
                pltpu.ARBITRARY if scales else pltpu.PARALLEL,
                pltpu.ARBITRARY,
            ),
            vmem_limit_bytes=config.vmem_limit_bytes,
        ),
        interpret=interpret,
        name="integer_dot_of_floats" if scales else "integer_dot",
    )(values, b, *leaves)


def _quantizes(a: FloatRows, batch: Sequence[int], config: TileConfig, of_integers: TileConfig, n: int) -> bool:
    """Whether the kernel, with `config`, moves fewer bytes than one with the tiles `of_integers`, and XLA before it."""
    m, k = a.shape[-2:]
    if a.values.dtype == jnp.float16 or math.prod(a.shape[:-2]) < math.prod(batch):
        return False  # Mosaic does not load float16; and the rows would be quantized for each matrix of B
    if current_chip() == "v5p" and m <= config.block_m:
        return False  # its two cores would have nothing to share but the columns
    sizes = m, k, n, a.values.dtype.itemsize
    return tpu_traffic.of_floats(config, *sizes) < tpu_traffic.of_integers(of_integers, *sizes)


def current_chip() -> str | None:
    """The TPU that a program is traced for, such as "v5e": that of the mesh in context, or the default device.

    None if that is not a TPU, as in lowering for TPUs on a machine without one.
    """
    try:
        return str(pltpu.get_tpu_info().chip_version)
    except (ValueError, RuntimeError):
        return None


def _check(a: jax.Array, b: jax.Array, *, floats: bool) -> None:
    if b.dtype != jnp.int8 or not (floats or a.dtype == jnp.int8):
        raise NotImplementedError(f"the TPU kernel multiplies int8 by int8, not {a.dtype} by {b.dtype}")
    require_sizes(a.shape, b.shape)


def require_sizes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Raises NotImplementedError for symbolic sizes and empty matrices."""
    if not all(isinstance(size, int) for size in (*a, *b)):
        raise NotImplementedError(f"the TPU kernel needs sizes that are known, not symbolic ones: {a} by {b}")
    if 0 in (*a, *b):
        raise NotImplementedError(f"the TPU kernel does not multiply empty matrices: {a} by {b}")


def _block_spec(shape: tuple[int, ...], *blocks: tuple[int, int | None], held: int | None = None) -> pl.BlockSpec:
    """Blocks of one matrix of a batch: the sizes of its two dimensions, each with its grid axis (None: only one block).

    Beyond the first columns, the block of K stays at `held`, unless that is None.
    """

    def index_map(*indices):
        batch, matrix = indices[:-3], list(indices[-3:])
        if held:
            is_first = matrix[_COLUMN_AXIS] == 0
            matrix[_SUM_AXIS] = lax.select(is_first, matrix[_SUM_AXIS], lax.full_like(matrix[_SUM_AXIS], held))
        return (
            *(index if size > 1 else 0 for index, size in zip(batch, shape[:-2], strict=True)),
            *(0 if axis is None else matrix[axis] for _, axis in blocks),
        )

    return pl.BlockSpec((*[None] * len(shape[:-2]), *(block for block, _ in blocks)), index_map)


def _leaf_spec(shape: tuple[int, ...], rows: tuple[int, int], columns: tuple[int, int]) -> pl.BlockSpec:
    blocks = (block if size > 1 else (1, None) for size, block in zip(shape[-2:], (rows, columns), strict=True))
    return _block_spec(shape, *blocks)


def _kernel_of_floats(a_ref, b_ref, scale_ref, *refs, k_axis: int, **parameters):
    """`_kernel` of the integers, which are computed with the first block of columns, and kept for those after it."""
    *others, integers_ref = refs
    step = pl.program_id(k_axis)

    @pl.when(pl.program_id(k_axis + _COLUMN_AXIS - _SUM_AXIS) == 0)
    def _quantize():
        block_m, block_k = a_ref.shape

        @pl.loop(0, block_m // ROWS)
        def _rows(index):
            rows = pl.ds(pl.multiple_of(index * ROWS, ROWS), ROWS)
            scale = integer_quotient.divisor(scale_ref[rows if scale_ref.shape[0] > 1 else slice(None), :])
            for start in range(0, block_k, _QUANTIZED_AT_ONCE):
                columns = slice(start, min(start + _QUANTIZED_AT_ONCE, block_k))
                x = a_ref[rows, columns].astype(jnp.float32)
                integers_ref[step, rows, columns] = integer_quotient.rounded(x, scale)

    _kernel(integers_ref.at[step], b_ref, *others, k_axis=k_axis, **parameters)


def _kernel(
    a_ref,
    b_ref,
    *refs,
    k: int,
    k_axis: int,
    transpose_b: bool,
    rows_at_once: int,
    unflatten: Callable[[list[jax.Array]], Epilogue],
):
    """One grid step: blocks of A, B, the epilogue's arrays and the output; and the sums, if K has several blocks."""
    block_m, block_k = a_ref.shape
    last = pl.cdiv(k, block_k) - 1
    *leaf_refs, out_ref = refs if last == 0 else refs[:-1]
    # Few rows at a time: their sums fit in the registers, and their epilogue runs beside the products of the next rows.
    slices = [pl.ds(start, min(rows_at_once, block_m - start)) for start in range(0, block_m, rows_at_once)]

    def product(rows, size: int = block_k):
        """The product over the first `size` of the block of K; beyond the end of the matrices, memory may hold anything."""
        width = min(block_k, pl.cdiv(size, LANES) * LANES)
        a = a_ref[rows, :width]
        b = b_ref[:, :width] if transpose_b else b_ref[:width, :]
        if size < width:
            # Zeros on one side suffice: any integer times 0 is 0. They are made by bit operations, because a `select` of
            # int8 does not compile if A has fewer rows than a register.
            inside = lax.broadcasted_iota(jnp.int32, a.shape, 1) < size
            a &= (-inside.astype(jnp.int32)).astype(jnp.int8)
        contraction = ((1,), (1 if transpose_b else 0,))
        return lax.dot_general(a, b, (contraction, ((), ())), preferred_element_type=jnp.int32)

    def store(rows, total):
        leaves = [ref[rows if ref.shape[0] > 1 else slice(None), :] for ref in leaf_refs]
        out_ref[rows, :] = epilogues.apply_in_kernel(unflatten(leaves), total)

    if last == 0:
        for rows in slices:
            store(rows, product(rows, k))
        return
    sums_ref, step = refs[-1], pl.program_id(k_axis)

    @pl.when(step == 0)
    def _first():
        for rows in slices:
            sums_ref[rows, :] = product(rows)

    if last > 1:

        @pl.when((step > 0) & (step < last))
        def _middle():
            for rows in slices:
                sums_ref[rows, :] += product(rows)

    @pl.when(step == last)
    def _last():
        for rows in slices:
            store(rows, sums_ref[rows, :] + product(rows, k - last * block_k))
