"""The primitive behind every integer product: the single entry to all implementations.

The implementation is chosen when the program is lowered, once for each platform that it is lowered for:
`jax.default_backend` is not that platform under `jax.export`, ahead-of-time compilation or ``jax.default_device``.
Kernels are imported there, so that jquant works where Pallas does not.
"""

import functools
import operator
from collections.abc import Callable, Iterator

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters.xla import apply_primitive

from jquant.kernels import epilogue as epilogues
from jquant.kernels import implementations, partition, xla
from jquant.kernels.epilogue import Epilogue
from jquant.kernels.float_rows import FloatRows, on_integers
from jquant.kernels.native import product as native
from jquant.kernels.zero_point import NO_ZERO_POINTS, ZeroPoints, multiply
from jquant.lowering import recording
from jquant.lowering.partitioned import is_partitioned, mapped_first, unless_partitioned
from jquant.modes import Implementation

_MODULES = {
    Implementation.NATIVE: "jquant.kernels.native.product",
    Implementation.MOSAIC_TPU: "jquant.kernels.pallas.tpu",
    Implementation.MOSAIC_GPU: "jquant.kernels.pallas.gpu",
}

_BY_XLA = {"cpu": xla.integer_dot_on_cpu, "cuda": xla.integer_dot_on_gpu}

# The most terms of a sum: 128 * 128 * 2**16 is 2**30. Some of XLA's GPU kernels saturate (`mma.satfinite`), and do not wrap.
_LONGEST_K = 2**16

_integer_dot_p = Primitive("integer_dot")


def integer_dot(
    a: jax.Array | FloatRows,
    b: jax.Array,
    epilogue: Epilogue = (),
    *,
    zero_points: ZeroPoints = NO_ZERO_POINTS,
    transpose_b: bool = False,
    implementation: Implementation | None = None,
) -> jax.Array:
    """``epilogue((a - zero_points.a) @ (b - zero_points.b))`` with sums in int32, the same from every implementation.

    Args:
      a: int8 or uint8, of shape (..., M, K); or floats that become int8, without a zero point, here or in a kernel.
      b: int8 or uint8, of shape (..., K, N), or (..., N, K) with `transpose_b`. Batch sizes of 1 broadcast.
      epilogue: the steps that follow, whose arrays have the rank of `a`.
      zero_points: of the rank of `a`.
      transpose_b: whether `b` is K-major, as packed weights are.
      implementation: None stands for the default of the platform.

    Raises:
      NotImplementedError: while lowering, if the requested implementation does not support the platform, the chip, or the
        shape.
    """
    k = a.shape[-1]
    is_long = isinstance(k, int) and k > _LONGEST_K
    if is_long or recording.is_active():
        zero_points, epilogue = zero_points.prepared(b.dtype), epilogues.prepared(epilogue)
    if isinstance(a, FloatRows) and (is_long or not _may_quantize(implementation)):
        a = a.quantized()
    if is_long:
        by_parts = functools.partial(_product_by_parts, implementation=implementation)
        return multiply(by_parts, a, b, zero_points, epilogue, transpose_b=transpose_b)
    values, scale = (a.values, a.scale) if isinstance(a, FloatRows) else (a, None)
    arrays, steps = jax.tree.flatten((zero_points, epilogue, scale))
    return _integer_dot_p.bind(values, b, *arrays, steps=steps, transpose_b=transpose_b, implementation=implementation)


def _may_quantize(implementation: Implementation | None) -> bool:
    """Whether a kernel that quantizes floats itself may be chosen. For all others, XLA sees the floats and fuses."""
    chosen = implementations.DEFAULTS.values() if implementation is None else (implementation,)
    return Implementation.MOSAIC_TPU in chosen and not recording.is_active()


def _product_by_parts(
    a: jax.Array, b: jax.Array, epilogue: Epilogue = (), *, transpose_b: bool, implementation: Implementation | None
) -> jax.Array:
    """``epilogue(a @ b)`` of int8, whose sums are too long to be computed at once."""
    product = functools.partial(integer_dot, transpose_b=transpose_b, implementation=implementation)

    def sum_of_parts(parts, a, b):
        products = map(product, parts(a, a.ndim - 1), parts(b, b.ndim - (1 if transpose_b else 2)))
        return (functools.reduce(operator.add, products),)

    in_order, interleaved = (functools.partial(sum_of_parts, parts) for parts in (_consecutive_parts, _interleaved_parts))
    (total,) = unless_partitioned(in_order, interleaved, a, b)
    return epilogues.apply(epilogue, total)


def _consecutive_parts(x: jax.Array, axis: int) -> Iterator[jax.Array]:
    """`x`, split along K into parts of at most `_LONGEST_K`."""
    k = x.shape[axis]
    return (lax.slice_in_dim(x, start, min(start + _LONGEST_K, k), axis=axis) for start in range(0, k, _LONGEST_K))


def _interleaved_parts(x: jax.Array, axis: int) -> Iterator[jax.Array]:
    """Parts of every n-th element, if n divides K: where a mesh splits K, no element moves."""
    k, n = x.shape[axis], -(-x.shape[axis] // _LONGEST_K)
    if k % n:
        return _consecutive_parts(x, axis)
    x = x.reshape(*x.shape[:axis], k // n, n, *x.shape[axis + 1 :])
    return (lax.index_in_dim(x, index, axis + 1, keepdims=False) for index in range(n))


def function_for(platform: str, implementation: Implementation | None) -> Callable[..., jax.Array]:
    """The product of int8 by the `implementation`, for a program for `platform`.

    Each takes what `xla.integer_dot` does: A, B, an epilogue that may be left out, and `transpose_b`.
    """
    implementation = implementation or implementations.default(platform)
    if implementation is Implementation.XLA:
        return _BY_XLA.get(platform, xla.integer_dot)
    return implementations.module_of(implementation, platform, _MODULES).integer_dot


def _call(product, a, b, *arrays, steps, transpose_b, implementation=None):
    zero_points, epilogue, scale = jax.tree.unflatten(steps, arrays)
    a = a if scale is None else FloatRows(a, scale)
    return product(a, b, zero_points, epilogue, transpose_b=transpose_b)


def _prepared(product: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`product`, which takes zero points and steps in the form that XLA and kernels compute with."""

    def function(a, b: jax.Array, zero_points: ZeroPoints, epilogue: Epilogue, **parameters) -> jax.Array:
        return product(a, b, zero_points.prepared(b.dtype), epilogues.prepared(epilogue), **parameters)

    return function


_integer_dot_p.def_impl(functools.partial(apply_primitive, _integer_dot_p))


@_integer_dot_p.def_abstract_eval
def _abstract_value(*operands, **parameters):
    product = _prepared(on_integers(functools.partial(multiply, xla.integer_dot)))
    reference = functools.partial(_call, product, **parameters)
    return jax.make_jaxpr(reference)(*operands).out_avals[0]


def _lower(platform, context, *operands, implementation, **parameters):
    chosen = implementations.exportable(implementation or implementations.default(platform), context)
    by_xla = _prepared(on_integers(functools.partial(multiply, function_for(platform, Implementation.XLA))))
    if chosen is Implementation.XLA:
        product = by_xla
    elif is_partitioned(context):
        on_each_shard = partition.on_each_shard(function_for(platform, chosen), context, parameters["transpose_b"])
        product = by_xla if on_each_shard is None else _prepared(on_integers(functools.partial(multiply, on_each_shard)))
        if on_each_shard is None and implementation is not None:
            where = "inside jax.shard_map, or on a mesh of explicit axes"
            implementations.warn_of_partitioning(implementation, where)
    elif chosen is Implementation.NATIVE and platform == "cpu":  # which takes all operands as they are
        product = on_integers(native.multiply)
    else:
        product = functools.partial(multiply, function_for(platform, chosen))
        product = _prepared(product if chosen is Implementation.MOSAIC_TPU else on_integers(product))
    if implementation is None and chosen is not Implementation.XLA:
        product = implementations.unless_declined(product, by_xla)
    return mlir.lower_fun(functools.partial(_call, product, **parameters), multiple_results=False)(context, *operands)


implementations.register_lowering(_integer_dot_p, _lower)


def _batch(operands, dimensions, **parameters):
    """Makes the mapped dimension the first batch dimension."""
    return _integer_dot_p.bind(*mapped_first(operands, dimensions), **parameters), 0


batching.primitive_batchers[_integer_dot_p] = _batch


def _differentiate(primals, tangents, *, steps, **parameters):
    """The derivative by the epilogue's arrays: the factors are integers, or become integers, which have no tangents."""
    a, b, *arrays = primals
    zero_points, epilogue, scale = jax.tree.unflatten(steps, arrays)
    _, epilogue_tangent, _ = jax.tree.unflatten(steps, map(ad.instantiate_zeros, tangents[2:]))
    points, steps = jax.tree.flatten((zero_points, (), scale))
    product = _integer_dot_p.bind(a, b, *points, steps=steps, **parameters)
    return jax.jvp(lambda epilogue: epilogues.apply(epilogue, product), (epilogue,), (epilogue_tangent,))


ad.primitive_jvps[_integer_dot_p] = _differentiate
