"""Programs that XLA partitions over a mesh: what they do otherwise, and how a kernel runs on each part.

Where a program is lowered, it is known whether XLA partitions it: a `jax.jit` over several devices is partitioned, and
what is inside of a `jax.shard_map` over the whole mesh is not. How it is split, only explicit mesh axes tell.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.interpreters.xla import apply_primitive
from jax.sharding import NamedSharding, PartitionSpec

from jquant.kernels import epilogue as epilogues
from jquant.kernels.batch import mapped_first
from jquant.kernels.epilogue import Epilogue


def is_partitioned(context: mlir.LoweringRuleContext) -> bool:
    """Whether XLA partitions what is lowered here: more than one device, and not a shard of its own."""
    axes: Any = context.module_context.axis_context
    mesh = getattr(axes, "mesh", None)
    if mesh is not None:  # inside of a shard_map, over all axes of the mesh or over some
        manual = axes.manual_axes | set(mesh.manual_axes)
        return any(size > 1 for name, size in mesh.shape.items() if name not in manual)
    return getattr(axes, "num_devices", 1) > 1


_unless_partitioned_p = Primitive("unless_partitioned")
_unless_partitioned_p.multiple_results = True


def unless_partitioned(function: Callable, otherwise: Callable, *operands: jax.Array) -> Sequence[jax.Array]:
    """``function(*operands)``; in a program that XLA partitions, or of operands of explicit types, ``otherwise(*operands)``.

    What is fast on one device may communicate on a mesh. Both return a sequence of arrays, of the same values; and both
    take operands with more dimensions in front, which broadcast, and of which each result has all.
    """
    return _unless_partitioned_p.bind(*operands, functions=(function, otherwise))


_unless_partitioned_p.def_impl(functools.partial(apply_primitive, _unless_partitioned_p))


@_unless_partitioned_p.def_abstract_eval
def _abstract_values(*operands, functions):
    _, otherwise = functions
    return jax.make_jaxpr(otherwise)(*operands).out_avals


def _lower(context, *operands, functions):
    function, otherwise = functions
    is_explicit = any(axes is not None for x in context.avals_in for axes in x.sharding.spec)  # a mesh of one device, too
    chosen = otherwise if is_explicit or is_partitioned(context) else function
    return mlir.lower_fun(chosen, multiple_results=True)(context, *operands)


mlir.register_lowering(_unless_partitioned_p, _lower)


def _batch(operands, dimensions, *, functions):
    results = _unless_partitioned_p.bind(*mapped_first(operands, dimensions), functions=functions)
    return results, [0] * len(results)


batching.primitive_batchers[_unless_partitioned_p] = _batch


def on_each_shard(
    product: Callable[..., jax.Array], context: mlir.LoweringRuleContext, transpose_b: bool
) -> Callable[..., jax.Array] | None:
    """`product`, an integer product with its epilogue, on each shard of what is lowered here.

    Where K is split, the int32 products of the shards are summed, and the epilogue follows the sum. None where the types
    do not tell how everything is split: unless all axes of the mesh are explicit, and K is split alike in both operands.
    """
    types: Any = (*context.avals_in[:2], *context.avals_out)
    a_spec, b_spec, output_spec = (x.sharding.spec for x in types)
    mesh = types[-1].sharding.mesh
    (*batch, m, n), k = output_spec, a_spec[-1]
    if mesh.empty or not mesh.are_all_axes_explicit or b_spec[-1 if transpose_b else -2] != k:
        return None

    def split(x: jax.Array, *entries) -> PartitionSpec:
        return PartitionSpec(*(None if size == 1 else entry for size, entry in zip(x.shape, entries, strict=True)))

    def on_a_shard(a: jax.Array, b: jax.Array, epilogue: Epilogue) -> jax.Array:
        if k is None:
            return product(a, b, epilogue, transpose_b=transpose_b)
        return epilogues.apply(epilogue, lax.psum(product(a, b, (), transpose_b=transpose_b), k))

    def on_all(a: jax.Array, b: jax.Array, epilogue: Epilogue, *, transpose_b: bool) -> jax.Array:
        b_split = split(b, *batch, *((n, k) if transpose_b else (k, n)))
        specs = split(a, *batch, m, k), b_split, jax.tree.map(lambda x: split(x, *batch, m, n), epilogue)
        shardings = jax.tree.map(functools.partial(NamedSharding, mesh), specs)
        operands = jax.reshard((a, b, epilogue), shardings)
        # Nothing differentiates this any more; unchecked, a kernel can be interpreted, too.
        placed = {"mesh": mesh, "in_specs": specs, "out_specs": output_spec, "check_vma": False}
        return jax.shard_map(on_a_shard, **placed)(*operands)

    return on_all
