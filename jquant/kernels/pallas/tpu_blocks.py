"""Products with scales by block on TPUs, in Pallas: compiled for v5e, v5p, v6e and 7x, and interpreted; not run on a TPU.

Each block of K has a product of its own in int32, which is scaled and added to those before it, in order: the sums of a
block of the output stay in vector memory from the first block of K to the last. Weights of 4 bits become bytes there.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jquant.arithmetic import exact
from jquant.kernels.pallas.tpu import current_chip
from jquant.kernels.pallas.tpu_block_plans import BlockPlan, plan_for

_SIGN_BITS = np.uint16(0x8888)  # of the four integers in a word
_PER_WORD = 4


def block_matmul(
    a: jax.Array,
    b: jax.Array,
    scale: jax.Array,
    zero_point: jax.Array | None = None,
    *,
    block_size: int,
    dtype: np.dtype,
    k_parts: int = 1,
    plan: BlockPlan | None = None,
    interpret: Any = False,
) -> jax.Array:
    """The sum over the blocks g of ``fl(fl(A[:, g] @ (B[g] - zero_point[g])) * scale[g])``, in their order, in float32.

    Args:
      a: int8, of shape (..., M, K).
      b: as `PackedBlockMatrix.data`, whole blocks: uint16 of shape (..., K / 4, N), or int8 of shape (..., K, N). Batch
        sizes of 1 broadcast.
      scale: float32, of shape (..., G, N).
      zero_point: any type of integers, of the shape of `scale`, for 4 bits only; or None.
      block_size: the rows of B that share a scale.
      dtype: int4, uint4 or int8: what the integers of `b` are.
      k_parts: into how many runs the blocks are cut, each of which is summed in order, and then pairs of runs.
      plan: the tiles; by default those for `current_chip` and the shapes.
      interpret: whether to interpret the kernel, where there is no TPU; or how (`pltpu.InterpretParams`).

    Raises:
      NotImplementedError: the chip has no plans, nor have the blocks; or the kernel does not take the operands.
    """
    _check(a, b, scale, zero_point, dtype)
    *a_batch, m, k = a.shape
    *b_batch, blocks, n = scale.shape
    if k != blocks * block_size:
        a = jnp.pad(a, [*[(0, 0)] * (a.ndim - 1), (0, blocks * block_size - k)])
    if k_parts > 1:
        a = jnp.moveaxis(a.reshape(*a_batch, m, k_parts, -1), -2, -3)
        b, scale, zero_point = jax.tree.map(
            lambda x: x.reshape(*x.shape[:-2], k_parts, x.shape[-2] // k_parts, n), (b, scale, zero_point)
        )
        options = {"block_size": block_size, "dtype": dtype, "plan": plan, "interpret": interpret}
        parts = block_matmul(a, b, scale, zero_point, **options)
        while parts.shape[-3] > 1:
            parts = exact.sum(parts[..., ::2, :, :], parts[..., 1::2, :, :])
        return parts[..., 0, :, :]
    if plan is None:
        plan = plan_for(current_chip(), m, blocks * block_size, n, block_size, 8 if b.dtype == jnp.int8 else 4)
    batch = jnp.broadcast_shapes(tuple(a_batch), tuple(b_batch))
    if plan.stacked:
        a = _stacked(a, plan, block_size)
    per_step = plan.block_k // block_size
    steps = pl.cdiv(blocks, per_step)
    signed = dtype == jnp.int4 and b.dtype == jnp.uint16
    if zero_point is not None:
        zero_point = zero_point.astype(jnp.int32) + np.int32(8 if signed else 0)
    vectors = [_by_step(x, steps, per_step) for x in (scale, zero_point) if x is not None]
    b_rows = plan.block_k // (1 if b.dtype == jnp.int8 else _PER_WORD)
    n_batch = len(batch)

    def spec(x: jax.Array, block: tuple[int, ...], place: Callable) -> pl.BlockSpec:
        sizes = x.shape[: x.ndim - len(block)]
        missing = n_batch - len(sizes)

        def index_map(*indices):
            of_batch = (i if size > 1 else 0 for i, size in zip(indices[missing:n_batch], sizes, strict=True))
            return *of_batch, *place(*indices[n_batch:])

        return pl.BlockSpec((*[None] * len(sizes), *block), index_map)

    vector_spec = functools.partial(spec, block=(None, per_step, plan.block_n), place=lambda i, j, s: (s, 0, j))
    output = jax.ShapeDtypeStruct((*batch, m, n), jnp.float32)
    return pl.pallas_call(
        functools.partial(
            _kernel,
            plan=plan,
            blocks=blocks,
            block_size=block_size,
            k_axis=n_batch + 2,
            signed=signed,
            has_zero_point=zero_point is not None,
            rounded=exact.seal if interpret else lambda x: x,
        ),
        out_shape=output,
        grid=(*batch, pl.cdiv(m, plan.block_m), pl.cdiv(n, plan.block_n), steps),
        in_specs=[
            spec(a, (plan.block_k // plan.depth, *a.shape[-2:]), lambda i, j, s: (s, 0, 0))
            if plan.stacked
            else spec(a, (plan.block_m, plan.block_k), lambda i, j, s: (i, s)),
            spec(b, (b_rows, plan.block_n), lambda i, j, s: (s, j)),
            *map(vector_spec, vectors),
        ],
        out_specs=spec(output, (plan.block_m, plan.block_n), lambda i, j, s: (i, j)),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(*[pltpu.PARALLEL] * (n_batch + 2), pltpu.ARBITRARY),
            vmem_limit_bytes=plan.vmem_limit_bytes,
        ),
        interpret=interpret,
        name="block_matmul",
    )(a, b, *vectors)


def _check(a: jax.Array, b: jax.Array, scale: jax.Array, zero_point: jax.Array | None, dtype: np.dtype) -> None:
    if a.dtype != jnp.int8 or dtype not in (jnp.int4, jnp.uint4, jnp.int8):
        raise NotImplementedError(f"the TPU kernel multiplies int8 by int4, uint4 or int8, not {a.dtype} by {dtype}")
    if dtype == jnp.int8 and zero_point is not None:
        raise NotImplementedError("the TPU kernel takes no zero points of weights of 8 bits: the difference has 9")
    sizes = (*a.shape, *b.shape, *scale.shape)
    if not all(isinstance(size, int) for size in sizes):
        raise NotImplementedError(f"the TPU kernel needs sizes that are known, not symbolic ones: {a.shape} by {b.shape}")
    if 0 in sizes:
        raise NotImplementedError(f"the TPU kernel multiplies no empty matrices: {a.shape} by {b.shape}")


def _by_step(x: jax.Array, steps: int, per_step: int) -> jax.Array:
    """Rows of blocks in shape (..., steps, rows of one step, N)."""
    *batch, blocks, n = x.shape
    if blocks != steps * per_step:
        x = jnp.pad(x, [*[(0, 0)] * len(batch), (0, steps * per_step - blocks), (0, 0)])
    return x.reshape(*batch, steps, per_step, n)


def _stacked(a: jax.Array, plan: BlockPlan, block_size: int) -> jax.Array:
    """For each `depth` of K, the rows of A once for each block of it, and zeros beside: (..., depths, rows, depth)."""
    *batch, m, k = a.shape
    depth, count = plan.depth, plan.depth // block_size
    a = jnp.pad(a, [*[(0, 0)] * len(batch), (0, plan.block_m - m), (0, -k % depth)])
    a = jnp.moveaxis(a.reshape(*batch, plan.block_m, -1, 1, count, block_size), -5, -3)
    is_own = jnp.eye(count, dtype=bool)[:, None, :, None]
    return jnp.where(is_own, a, jnp.int8(0)).reshape(*batch, -1, count * plan.block_m, depth)


def _kernel(
    a_ref,
    b_ref,
    scale_ref,
    *refs,
    plan: BlockPlan,
    blocks: int,
    block_size: int,
    k_axis: int,
    signed: bool,
    has_zero_point: bool,
    rounded: Callable[[jax.Array], jax.Array],
):
    """One grid step: some blocks of K for a block of the output.

    Arguments:
      blocks: in all of K.
      signed: whether the words hold int4.
      rounded: what keeps a product apart from the sum behind it. Mosaic does so by itself.
    """
    zero_ref, out_ref = refs if has_zero_point else (None, *refs)
    per_step, per_depth = plan.block_k // block_size, plan.depth // block_size
    steps = pl.cdiv(blocks, per_step)
    step = pl.program_id(k_axis)

    def integers(depth: int, columns) -> jax.Array:
        """One `depth` of B in int8, less its zero points."""
        start = depth * plan.depth
        if b_ref.dtype == jnp.int8:
            b = b_ref[start : start + plan.depth, columns]
        else:
            words = b_ref[start // _PER_WORD : (start + plan.depth) // _PER_WORD, columns]
            if signed and not has_zero_point:  # int4 plus 8 is int4 with its highest bit flipped
                b = pltpu.bitcast(words ^ _SIGN_BITS, jnp.int4)
            else:
                b = pltpu.bitcast(words, jnp.uint4)
        if has_zero_point:
            first = depth * per_depth
            zero_points = [
                jnp.broadcast_to(zero_ref[g : g + 1, columns], (block_size, b.shape[1])) for g in range(first, first + per_depth)
            ]
            b = b.astype(jnp.int32) - jnp.concatenate(zero_points)
        return b.astype(jnp.int8)

    def sums(rows, depth: int, b: jax.Array) -> list[jax.Array]:
        """For each block of a `depth`, its part of the product."""
        if plan.stacked:
            product = _dot(a_ref[depth], b)
            return [product[g * plan.block_m : (g + 1) * plan.block_m] for g in range(per_depth)]
        start = depth * plan.depth
        return [
            _dot(a_ref[rows, start + g : start + g + block_size], b[g : g + block_size])
            for g in range(0, plan.depth, block_size)
        ]

    def add(count: int):
        """The first `count` blocks of this step."""
        for columns in _slices(plan.block_n, plan.columns_at_once):
            for rows in _slices(plan.block_m, plan.rows_at_once):
                total = None if steps == 1 else out_ref[rows, columns]
                for depth in range(pl.cdiv(count, per_depth)):
                    products = sums(rows, depth, integers(depth, columns))
                    for g, product in enumerate(products[: count - depth * per_depth], depth * per_depth):
                        term = rounded(product.astype(jnp.float32) * scale_ref[g : g + 1, columns])
                        total = term if total is None else total + term
                out_ref[rows, columns] = total

    if steps > 1:

        @pl.when(step == 0)
        def _start():
            # The sum of -0.0 and x is x, be it -0.0 itself: so the first term needs no program of its own.
            out_ref[...] = jnp.full_like(out_ref, -0.0)

    rest = blocks - (steps - 1) * per_step
    if rest == per_step:
        add(per_step)
    else:
        pl.when(step < steps - 1)(functools.partial(add, per_step))
        pl.when(step == steps - 1)(functools.partial(add, rest))


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)


def _slices(size: int, at_once: int) -> list:
    return [pl.ds(start, min(at_once, size - start)) for start in range(0, size, at_once)]
