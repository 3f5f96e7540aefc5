"""Ways to split an integer product over a mesh of two axes, and the communication that each needs."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.collectives import Collective, collectives

import jquant
from jquant.kernels import implementations

BOTH = ("x", "y")
# The types of a mesh's axes: automatic ones, whose splits XLA propagates, and in the gate explicit ones as well.
kinds = pytest.mark.parametrize(
    "kind", [AxisType.Auto, pytest.param(AxisType.Explicit, marks=pytest.mark.gate)], ids=["Auto", "Explicit"]
)
# The specs of A (..., M, K) and B (..., K, N); zero points are split like their rows and columns.
LAYOUTS = {
    "M": (P(BOTH, None), P(None, None)),
    "N": (P(None, None), P(None, BOTH)),
    "K": (P(None, BOTH), P(BOTH, None)),
    "M+N": (P("x", None), P(None, "y")),
    "M+K": (P("x", "y"), P("y", None)),
    "batch": (P(BOTH, None, None), P(BOTH, None, None)),
}


def parts(mesh: jax.sharding.Mesh, axes: str | tuple[str, ...] | None) -> int:
    """The number of parts of a dimension that is split over `axes`."""
    return math.prod(mesh.shape[axis] for axis in ([axes] if isinstance(axes, str) else axes or ()))


def shapes(mesh: jax.sharding.Mesh, layout: str, m: int, k: int, n: int, *, packed: bool) -> tuple:
    """Abstract arrays with shardings: A and its zero points, and B and its zero points, or packed weights for those two."""
    a_spec, b_spec = LAYOUTS[layout]
    batch = (mesh.size,) if layout == "batch" else ()

    def uint8(spec, *sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.uint8, sharding=NamedSharding(mesh, spec))

    a, a_zero_point = uint8(a_spec, *batch, m, k), uint8(P(a_spec[-2]), m)
    b, b_zero_point = uint8(b_spec, *batch, k, n), uint8(P(b_spec[-1]), n)
    if not packed:
        return a, a_zero_point, b, b_zero_point
    unsharded = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (b, b_zero_point))
    weights = jax.eval_shape(lambda b, zero_point: jquant.pack_matrix(b, zero_point, block_size=64), *unsharded)
    shardings = weights.sharding_for(NamedSharding(mesh, b_spec))
    split = jax.tree.map(lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), weights, shardings)
    return a, a_zero_point, split


def matmul_integer(a, a_zero_point, b, b_zero_point=None, **options) -> jax.Array:
    """`jquant.matmul_integer` with its operands in the order of `shapes`."""
    return jquant.matmul_integer(a, b, a_zero_point, b_zero_point, **options)


def compiled(mesh: jax.sharding.Mesh, layout: str, *sizes: int, packed: bool = True, **options) -> jax.stages.Compiled:
    """The operator's program for `mesh`, for the sizes M, K and N."""
    multiply = jax.jit(functools.partial(matmul_integer, **options))
    return multiply.lower(*shapes(mesh, layout, *sizes, packed=packed)).compile()


def compiled_with_a_warning(mesh: jax.sharding.Mesh, layout: str, *sizes: int, implementation: str) -> jax.stages.Compiled:
    """`compiled`, where XLA's product replaces the kernel with a warning, which a process gives once."""
    implementations.warn_of_partitioning.cache_clear()
    with pytest.warns(UserWarning, match=f"implementation {implementation} cannot be partitioned by XLA"):
        return compiled(mesh, layout, *sizes, implementation=implementation)


def assert_only_sums_move(program: jax.stages.Compiled, mesh: jax.sharding.Mesh, layout: str, m: int, n: int) -> None:
    """Asserts that nothing moves unless K is split, and then only a shard's product and sums, in one all-reduce of int32."""
    a_spec, b_spec = LAYOUTS[layout]
    m, n = m // parts(mesh, a_spec[-2]), n // parts(mesh, b_spec[-1])
    expected = [] if a_spec[-1] is None else [Collective("all-reduce", {"s32"}, m * n + m + n)]
    assert collectives(program.as_text()) == expected
