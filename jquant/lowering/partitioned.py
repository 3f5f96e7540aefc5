"""Functions that are implemented differently for programs that XLA partitions over a mesh.

Whether XLA partitions a program is known when it is lowered: a `jax.jit` over several devices is partitioned; the inside
of a `jax.shard_map` over the whole mesh is not.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.interpreters.xla import apply_primitive

from jquant.lowering import recording


def is_partitioned(context: mlir.LoweringRuleContext) -> bool:
    """Whether XLA partitions what is being lowered: over several devices, outside a `jax.shard_map` of the whole mesh."""
    axes: Any = context.module_context.axis_context
    mesh = getattr(axes, "mesh", None)
    if mesh is not None:  # inside a shard_map, over all axes of the mesh or over some
        manual = axes.manual_axes | set(mesh.manual_axes)
        return any(size > 1 for name, size in mesh.shape.items() if name not in manual)
    return getattr(axes, "num_devices", 1) > 1


_keeps_native = contextvars.ContextVar("keeps_native", default=False)


@contextlib.contextmanager
def keeping_native() -> Iterator[None]:
    """Programs for `jax.export` that are lowered inside may call jquant-native, as the machines that run them have it."""
    token = _keeps_native.set(True)
    try:
        yield
    finally:
        _keeps_native.reset(token)


def is_for_others(context: mlir.LoweringRuleContext) -> bool:
    """Whether what is being lowered is for `jax.export`, so that another machine may run it, which has XLA alone."""
    return context.module_context.lowering_parameters.for_export and not _keeps_native.get()


def is_explicit(context: mlir.LoweringRuleContext) -> bool:
    """Whether the types of the operands say how they are split; also on a mesh of one device."""
    types: Any = context.avals_in
    return any(axes is not None for x in types for axes in x.sharding.spec)


_unless_partitioned_p = Primitive("unless_partitioned")
_unless_partitioned_p.multiple_results = True


def unless_partitioned(
    function: Callable,
    otherwise: Callable,
    *operands: jax.Array,
    on_cpu: Callable | None = None,
    on_this_cpu: Callable | None = None,
    on_gpu: Callable | None = None,
) -> Sequence[jax.Array]:
    """``function(*operands)``; in a program that XLA partitions, or for explicit types, ``otherwise(*operands)``.

    What is fast on one device may communicate on a mesh. All functions return the same sequence of arrays. They also take
    operands with more leading dimensions, as `jax.vmap` adds them, which broadcast; every result has all of them. `on_cpu`,
    if there is one, takes the place of `function` in programs for a CPU, `on_this_cpu` that of both in programs that are not
    for other machines (`jax.export`), and `on_gpu` that of `function` in programs for an NVIDIA GPU.
    """
    if recording.is_active():
        return function(*operands)
    on_cpu = on_cpu or function
    functions = function, otherwise, on_cpu, on_this_cpu or on_cpu, on_gpu or function
    return _unless_partitioned_p.bind(*operands, functions=functions)


_unless_partitioned_p.def_impl(functools.partial(apply_primitive, _unless_partitioned_p))


@_unless_partitioned_p.def_abstract_eval
def _abstract_values(*operands, functions):
    _, otherwise, *_ = functions
    return jax.make_jaxpr(otherwise)(*operands).out_avals


def _lower(platform: str, context, *operands, functions):
    function, otherwise, on_cpu, on_this_cpu, on_gpu = functions
    by_platform = {"cpu": on_cpu if is_for_others(context) else on_this_cpu, "cuda": on_gpu}
    unpartitioned = by_platform.get(platform, function)
    implementation = otherwise if is_explicit(context) or is_partitioned(context) else unpartitioned
    return mlir.lower_fun(implementation, multiple_results=True)(context, *operands)


for _platform in ("cpu", "cuda"):
    mlir.register_lowering(_unless_partitioned_p, functools.partial(_lower, _platform), platform=_platform)
mlir.register_lowering(_unless_partitioned_p, functools.partial(_lower, "other"))


def mapped_first(operands: Sequence[jax.Array], dimensions: Sequence[int | None]) -> list[jax.Array]:
    """The operands of a batching rule, with their mapped dimension first, of size 1 where an operand has none."""
    return [x[None] if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dimensions, strict=True)]


def _batch(operands, dimensions, *, functions):
    results = _unless_partitioned_p.bind(*mapped_first(operands, dimensions), functions=functions)
    return results, [0] * len(results)


batching.primitive_batchers[_unless_partitioned_p] = _batch
