"""Runs a kernel on each shard of a program that is partitioned over a mesh.

Whether a program is partitioned is known when it is lowered (`jquant.lowering.partitioned`); how it is split is only
known with explicit mesh axes.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from jquant.kernels import epilogue as epilogues
from jquant.kernels.epilogue import Epilogue


def on_each_shard(
    product: Callable[..., jax.Array], context: mlir.LoweringRuleContext, transpose_b: bool
) -> Callable[..., jax.Array] | None:
    """Runs `product`, an integer product with its epilogue, on each shard of what is being lowered.

    If K is split, the int32 products of the shards are summed, and the epilogue follows the sum. Returns None unless the
    types say how everything is split: all axes of the mesh are explicit, and both operands split K alike.
    """
    types: Any = (*context.avals_in[:2], *context.avals_out)
    a_spec, b_spec, output_spec = (x.sharding.spec for x in types)
    mesh = types[-1].sharding.mesh
    (*batch, m, n), k = output_spec, a_spec[-1]
    if mesh.empty or not mesh.are_all_axes_explicit or b_spec[-1 if transpose_b else -2] != k:
        return None

    def split(x: jax.Array, *entries) -> PartitionSpec:
        return PartitionSpec(*(None if size == 1 else entry for size, entry in zip(x.shape, entries, strict=True)))

    def shard_product(a: jax.Array, b: jax.Array, epilogue: Epilogue) -> jax.Array:
        if k is None:
            return product(a, b, epilogue, transpose_b=transpose_b)
        return epilogues.apply(epilogue, lax.psum(product(a, b, (), transpose_b=transpose_b), k))

    def sharded_product(a: jax.Array, b: jax.Array, epilogue: Epilogue = (), *, transpose_b: bool) -> jax.Array:
        b_split = split(b, *batch, *((n, k) if transpose_b else (k, n)))
        specs = split(a, *batch, m, k), b_split, jax.tree.map(lambda x: split(x, *batch, m, n), epilogue)
        shardings = jax.tree.map(functools.partial(NamedSharding, mesh), specs)
        operands = jax.reshard((a, b, epilogue), shardings)
        # Nothing differentiates this any more; without the check, a kernel can also be interpreted.
        mapped = jax.shard_map(shard_product, mesh=mesh, in_specs=specs, out_specs=output_spec, check_vma=False)
        return mapped(*operands)

    return sharded_product
