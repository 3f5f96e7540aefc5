"""The primitive behind every product with block scales: the single entry to all implementations.

As in `integer_dot`, the implementation is chosen when the program is lowered, once for each platform that it is lowered for.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters.xla import apply_primitive

from jquant.arithmetic import exact, float_bits
from jquant.kernels import blocks_on_cpu, implementations, xla_blocks
from jquant.kernels import epilogue as epilogues
from jquant.kernels.epilogue import Epilogue
from jquant.kernels.weight_only import dense
from jquant.lowering.partitioned import is_explicit, is_partitioned, mapped_first, unless_partitioned
from jquant.modes import Implementation
from jquant.packed.block_matrix import PackedBlockMatrix

_MODULES = {
    Implementation.NATIVE: "jquant.kernels.native.blocks",
    Implementation.MOSAIC_TPU: "jquant.kernels.pallas.tpu_blocks",
    Implementation.MOSAIC_GPU: "jquant.kernels.pallas.gpu_blocks",
}

_block_dot_p = Primitive("block_dot")


def block_dot(
    a: jax.Array,
    a_zero_point: jax.Array | None,
    b: PackedBlockMatrix,
    epilogue: Epilogue = (),
    *,
    k_parts: int = 1,
    implementation: Implementation | None = None,
) -> jax.Array:
    """``epilogue(r)``, where r is the sum of the blocks' contributions: the same bits from every implementation.

    For each block g, ``t = fl(fl(S) * scale[g])``, where S is the exact product, in int32, of A and B in this block, less
    their zero points. Where B has a minimum in place of zero points, ``t = fl(t + fl(fl(R) * minimum[g]))`` follows, where R
    is the exact sum over this block, in int32, of a row of A less its zero point.

    ``r = fl(... fl(fl(t_0 + t_1) + t_2) ...)``, in the order of the blocks. With `k_parts`, the blocks are divided into that
    many runs, each of which is summed in this way, and the sums are added in adjacent pairs.

    Args:
      a: int8 or uint8, of shape (..., M, K).
      a_zero_point: of the dtype of `a`, of shape (..., M, 1) or (..., 1, 1), or None for 0.
      b: of shape (..., K, N) and the rank of `a`. Batch sizes of 1 broadcast; under `jax.vmap`, they may differ between the
        arrays that it holds.
      epilogue: the steps that follow, on float32, whose arrays have the rank of `a`.
      k_parts: a power of two that divides the number of blocks.
      implementation: None stands for the default of the platform.

    Raises:
      NotImplementedError: while lowering, if the requested implementation does not support the platform, the chip, the
        shape, or a minimum.
    """
    arrays, tree = jax.tree.flatten((a, a_zero_point, b, epilogue))
    return _block_dot_p.bind(*arrays, tree=tree, k_parts=k_parts, implementation=implementation)


def function_for(platform: str, implementation: Implementation | None) -> Callable[..., jax.Array]:
    """The `implementation`, with its epilogue, for a program for `platform` that XLA does not partition."""
    implementation = implementation or implementations.default(platform)
    if implementation is Implementation.XLA:
        return with_epilogue(blocks_on_cpu.block_dot if platform == "cpu" else xla_blocks.block_dot)
    function = implementations.module_of(implementation, platform, _MODULES).block_dot
    return function if implementation is Implementation.NATIVE else with_epilogue(function)


def with_epilogue(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`function`, followed by the steps of an epilogue, which it does not take itself."""

    @functools.wraps(function)
    def multiply(a, a_zero_point, b, epilogue=()):
        return epilogues.apply(epilogue, function(a, a_zero_point, b))

    return multiply


def _call(function: Callable, *arrays, tree, k_parts, implementation=None) -> jax.Array:
    """Applies `function` to the runs, along one more batch dimension; then adds up their sums and applies the epilogue."""
    a, a_zero_point, b, epilogue = jax.tree.unflatten(tree, arrays)
    operands = _padded_to_blocks(*_with_joint_batches(a, a_zero_point, b))
    if k_parts == 1:
        return function(*operands, epilogue)
    sums = function(*_in_runs(*operands, k_parts))
    return epilogues.apply(epilogue, _pairwise_sum(sums))


def _with_joint_batches(
    a: jax.Array, a_zero_point: jax.Array | None, b: PackedBlockMatrix
) -> tuple[jax.Array, jax.Array | None, PackedBlockMatrix]:
    """The operands with A broadcast to the batch of its zero points, and all arrays of B to one batch.

    They differ where `jax.vmap` maps one of the arrays alone.
    """
    a = _broadcast_to_batch((a, a_zero_point), a)
    return a, a_zero_point, jax.tree.map(functools.partial(_broadcast_to_batch, b), b)


def _broadcast_to_batch(arrays: Any, x: jax.Array) -> jax.Array:
    """`x` broadcast to the common batch of `arrays`."""
    batch = jnp.broadcast_shapes(*(array.shape[:-2] for array in jax.tree.leaves(arrays)))
    return jnp.broadcast_to(x, (*batch, *x.shape[-2:]))


def _padded_to_blocks(
    a: jax.Array, a_zero_point: jax.Array | None, b: PackedBlockMatrix
) -> tuple[jax.Array, jax.Array | None, PackedBlockMatrix]:
    """The operands with A padded to whole blocks by its zero point, so that the padding rows of B do not matter."""
    if b.padding:
        shape = (*a.shape[:-1], b.padding)
        zero_point = jnp.zeros((), a.dtype) if a_zero_point is None else a_zero_point
        a = lax.concatenate([a, jnp.broadcast_to(zero_point, shape)], a.ndim - 1)
    return a, a_zero_point, dataclasses.replace(b, padding=0)


def _in_runs(a: jax.Array, a_zero_point: jax.Array | None, b: PackedBlockMatrix, parts: int) -> tuple:
    """The operands split along K into `parts` runs, which become the last dimension of the batch."""
    *batch, m, k = a.shape
    a = jnp.moveaxis(a.reshape(*batch, m, parts, k // parts), -2, -3)
    a_zero_point = None if a_zero_point is None else jnp.expand_dims(a_zero_point, -3)
    b = b.n_minor(may_be_codes=True)
    b = jax.tree.map(lambda x: x.reshape(*x.shape[:-2], parts, x.shape[-2] // parts, x.shape[-1]), b)
    return a, a_zero_point, b


def _pairwise_sum(sums: jax.Array) -> jax.Array:
    """The sums of the runs, of shape (..., parts, M, N), added in adjacent pairs until one is left."""
    (total,) = unless_partitioned(_pairwise_sum_of_slices, _pairwise_sum_across_devices, sums)
    return total


def _pairwise_sum_of_slices(sums: jax.Array) -> tuple[jax.Array]:
    axis = sums.ndim - 3
    while (parts := sums.shape[axis]) > 1:
        even, odd = (lax.slice_in_dim(sums, first, parts, 2, axis) for first in (0, 1))
        sums = exact.sum(even, odd)
    return (jnp.squeeze(sums, axis),)


def _pairwise_sum_across_devices(sums: jax.Array) -> tuple[jax.Array]:
    """`_pairwise_sum` over several devices: collected by one integer sum, in which a run's sum is 0 on other devices.

    XLA would send each slice separately.
    """
    parts, dimension = sums.shape[-3], sums.ndim - 3
    places = (*(1,) * dimension, parts, parts, 1, 1)
    is_own = lax.broadcasted_iota(jnp.int32, places, dimension) == lax.broadcasted_iota(jnp.int32, places, dimension + 1)
    bits = float_bits.bits(sums)[..., None, :, :, :]
    collected = jnp.sum(jnp.where(is_own, bits, jnp.int32(0)), axis=-3, dtype=jnp.int32)
    return _pairwise_sum_of_slices(float_bits.from_bits(collected))


_block_dot_p.def_impl(functools.partial(apply_primitive, _block_dot_p))


@_block_dot_p.def_abstract_eval
def _abstract_value(*operands, tree, **_):
    function = functools.partial(_call, with_epilogue(xla_blocks.stand_in), tree=tree, k_parts=1)
    return jax.make_jaxpr(function)(*operands).out_avals[0]


def _lower(platform, context, *operands, implementation, **parameters):
    chosen = implementations.exportable(implementation or implementations.default(platform), context)
    function = function_for(platform, chosen)
    if is_partitioned(context) or is_explicit(context):
        function = with_epilogue(xla_blocks.block_dot)
        if implementation not in (None, Implementation.XLA):
            implementations.warn_of_partitioning(implementation, "inside jax.shard_map")
    elif implementation is None and chosen is not Implementation.XLA:
        function = implementations.unless_declined(function, function_for(platform, Implementation.XLA))
    return mlir.lower_fun(functools.partial(_call, function, **parameters), multiple_results=False)(context, *operands)


implementations.register_lowering(_block_dot_p, _lower)


def _batch(operands, dimensions, **parameters):
    """Makes the mapped dimension the first batch dimension."""
    return _block_dot_p.bind(*mapped_first(operands, dimensions), **parameters), 0


batching.primitive_batchers[_block_dot_p] = _batch


def _differentiate(primals, tangents, *, tree, **parameters):
    """The derivative by the scales and minima of B and by the epilogue's arrays: integers have no tangents.

    The derivative by the scales needs the products of all blocks, int32, of shape (..., G, M, N).
    """
    a, a_zero_point, b, epilogue = jax.tree.unflatten(tree, primals)
    _, _, b_tangent, _ = jax.tree.unflatten(tree, tangents)
    *_, epilogue_tangent = jax.tree.unflatten(tree, map(ad.instantiate_zeros, tangents))
    r = block_dot(a, a_zero_point, b, **parameters)
    has_scale, has_minimum = (not isinstance(tangent, ad.Zero | None) for tangent in (b_tangent.scale, b_tangent.minimum))
    if not has_scale and not has_minimum:
        return jax.jvp(lambda epilogue: epilogues.apply(epilogue, r), (epilogue,), (epilogue_tangent,))
    a, a_zero_point, b = _padded_to_blocks(*_with_joint_batches(a, a_zero_point, b))
    r_tangents = []
    if has_scale:
        products = xla_blocks.products(a, a_zero_point, b)
        r_tangents.append((products.astype(jnp.float32) * b_tangent.scale[..., None, :].astype(jnp.float32)).sum(-3))
    if has_minimum:
        row_sums = xla_blocks.row_sums(a, a_zero_point, b.block_size)
        r_tangents.append(dense.dot(row_sums.astype(jnp.float32), b_tangent.minimum.astype(jnp.float32)))
    return jax.jvp(epilogues.apply, (epilogue, r), (epilogue_tangent, functools.reduce(operator.add, r_tangents)))


ad.primitive_jvps[_block_dot_p] = _differentiate
