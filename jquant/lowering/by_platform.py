"""Functions that are implemented differently for some platforms.

`jax.lax.platform_dependent` traces every implementation wherever it is used, and most of what is traced is thrown away.
Here, nothing is traced before the program is lowered for a platform, and then only the implementation for that platform. So
the type of the result has to be known in advance: it is that of the first operand.
"""

import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.interpreters.xla import apply_primitive

from jquant.lowering import recording
from jquant.lowering.partitioned import is_explicit, is_partitioned, mapped_first

Implementation = Callable[..., jax.Array]
_by_platform_p = Primitive("by_platform")


def elementwise(
    otherwise: Implementation, *operands: jax.Array, cpu: Implementation, one_cpu: Implementation | None = None
) -> jax.Array:
    """``cpu(*operands)`` in programs for a CPU, ``otherwise(*operands)`` in all others.

    The operands and the result have one shape and one dtype. There is no derivative. `one_cpu`, if there is one, takes the
    place of `cpu` in programs that XLA does not partition, where a reshape moves no element to another device.
    """
    if recording.is_active():
        return otherwise(*operands)
    by_platform = ("cpu", cpu), ("one_cpu", one_cpu or cpu)
    return _by_platform_p.bind(*operands, by_platform=by_platform, otherwise=otherwise, elementwise=True)


def like_first(otherwise: Implementation, x: jax.Array, *parameters: jax.Array, tpu: Implementation) -> jax.Array:
    """``tpu(x, *parameters)`` in programs for a TPU, ``otherwise(x, *parameters)`` in all others.

    The result has the shape and the dtype of `x`, whose elements share the parameters. The derivative is 0.
    """
    operands = map(lax.stop_gradient, (x, *parameters))
    if recording.is_active():
        return otherwise(*operands)
    return _by_platform_p.bind(*operands, by_platform=(("tpu", tpu),), otherwise=otherwise, elementwise=False)


def unchanged(x: jax.Array) -> jax.Array:
    """`x`: the implementation for platforms on which nothing has to be done."""
    return x


_by_platform_p.def_impl(functools.partial(apply_primitive, _by_platform_p))


@_by_platform_p.def_abstract_eval
def _abstract_value(first, *others, by_platform, otherwise, elementwise):
    del by_platform, otherwise
    if all(other == first for other in others):
        return first

    def combined(first: jax.Array, *others: jax.Array) -> jax.Array:
        """A result whose type has what the types of all operands say, such as explicit axes of a mesh."""
        parts = others if elementwise else (jnp.sum(other).astype(first.dtype) for other in others)
        return functools.reduce(operator.add, parts, first)

    return jax.make_jaxpr(combined)(first, *others).out_avals[0]


def _lower(platform, context, *operands, by_platform, otherwise, elementwise):
    del elementwise
    if platform == "cpu" and not is_explicit(context) and not is_partitioned(context):
        platform = "one_cpu"
    implementation = dict(by_platform).get(platform, otherwise)
    return mlir.lower_fun(implementation, multiple_results=False)(context, *operands)


for _platform in ("cpu", "tpu"):
    mlir.register_lowering(_by_platform_p, functools.partial(_lower, _platform), platform=_platform)
mlir.register_lowering(_by_platform_p, functools.partial(_lower, "other"))


def _batch(operands, dimensions, *, by_platform, otherwise, elementwise):
    if elementwise:
        if len(set(dimensions)) > 1:
            operands, dimensions = jnp.broadcast_arrays(*mapped_first(operands, dimensions)), [0]
        return _by_platform_p.bind(*operands, by_platform=by_platform, otherwise=otherwise, elementwise=True), dimensions[0]
    size = next(x.shape[d] for x, d in zip(operands, dimensions, strict=True) if d is not None)
    first, *parameters = mapped_first(operands, dimensions)
    axes = 0, *(None if d is None else 0 for d in dimensions[1:])
    parameters = [x[0] if axis is None else x for x, axis in zip(parameters, axes[1:], strict=True)]
    first = jnp.broadcast_to(first, (size, *first.shape[1:]))
    by_platform = tuple((platform, jax.vmap(implementation, axes)) for platform, implementation in by_platform)
    otherwise = jax.vmap(otherwise, axes)
    return _by_platform_p.bind(first, *parameters, by_platform=by_platform, otherwise=otherwise, elementwise=False), 0


batching.primitive_batchers[_by_platform_p] = _batch
