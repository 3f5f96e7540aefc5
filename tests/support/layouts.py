"""How a product can be split over a mesh of two axes, and what its compiled program may communicate."""

import functools
import math
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jquant
from jquant.kernels import implementations

BOTH = ("x", "y")
# Of the axes of a mesh: those that XLA splits along by itself, and in the gate those that are in the types, too.
kinds = pytest.mark.parametrize(
    "kind", [AxisType.Auto, pytest.param(AxisType.Explicit, marks=pytest.mark.gate)], ids=["Auto", "Explicit"]
)
# How A (..., M, K) and B (..., K, N) are split; their zero points follow.
LAYOUTS = {
    "M": (P(BOTH, None), P(None, None)),
    "N": (P(None, None), P(None, BOTH)),
    "K": (P(None, BOTH), P(BOTH, None)),
    "M+N": (P("x", None), P(None, "y")),
    "M+K": (P("x", "y"), P("y", None)),
    "batch": (P(BOTH, None, None), P(BOTH, None, None)),
}


def parts(mesh: jax.sharding.Mesh, axes: str | tuple[str, ...] | None) -> int:
    """Into how many parts a dimension is split over `axes`."""
    return math.prod(mesh.shape[axis] for axis in ([axes] if isinstance(axes, str) else axes or ()))


def shapes(mesh: jax.sharding.Mesh, layout: str, m: int, k: int, n: int, *, packed: bool) -> tuple:
    """Of A, its zero points, B and its zero points (or packed), with their shardings, for programs to be compiled for."""
    a_spec, b_spec = LAYOUTS[layout]
    batch = (mesh.size,) if layout == "batch" else ()

    def uint8(spec, *sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.uint8, sharding=NamedSharding(mesh, spec))

    a, a_zero_point = uint8(a_spec, *batch, m, k), uint8(P(a_spec[-2]), m)
    b, b_zero_point = uint8(b_spec, *batch, k, n), uint8(P(b_spec[-1]), n)
    if not packed:
        return a, a_zero_point, b, b_zero_point
    whole = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (b, b_zero_point))
    weights = jax.eval_shape(lambda b, zero_point: jquant.pack_matrix(b, zero_point, block_size=64), *whole)
    shardings = weights.sharding_for(NamedSharding(mesh, b_spec))
    split = jax.tree.map(lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), weights, shardings)
    return a, a_zero_point, split


def matmul_integer(a, a_zero_point, b, b_zero_point=None, **options) -> jax.Array:
    """The operator, its operands in the order of `shapes`."""
    return jquant.matmul_integer(a, b, a_zero_point, b_zero_point, **options)


def compiled(mesh: jax.sharding.Mesh, layout: str, *sizes: int, packed: bool = True, **options) -> jax.stages.Compiled:
    """The operator's program for `mesh`, of M, K and N."""
    multiply = jax.jit(functools.partial(matmul_integer, **options))
    return multiply.lower(*shapes(mesh, layout, *sizes, packed=packed)).compile()


def compiled_with_a_warning(mesh: jax.sharding.Mesh, layout: str, *sizes: int, implementation: str) -> jax.stages.Compiled:
    """The same where the kernel gives way, which is said once in a process."""
    implementations.warn_of_partitioning.cache_clear()
    with pytest.warns(UserWarning, match=f"implementation {implementation} cannot be partitioned by XLA"):
        return compiled(mesh, layout, *sizes, implementation=implementation)


_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all", "collective-broadcast")
_OPERATION = re.compile(rf" = (?P<types>\(.*?\)|\S+) (?P<kind>{'|'.join(_KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")


class Collective(NamedTuple):
    """One operation of a compiled program: its kind, the types of its arrays, and their elements on one device."""

    kind: str
    types: set[str]
    elements: int


def collectives(program: str) -> list[Collective]:
    """Those of the text of a compiled program, in its order."""
    found = []
    for operation in _OPERATION.finditer(program):
        arrays = _ARRAY.findall(operation["types"])
        elements = sum(math.prod(int(size) for size in sizes.split(",") if size) for _, sizes in arrays)
        found.append(Collective(operation["kind"], {dtype for dtype, _ in arrays}, elements))
    return found


def assert_only_sums_move(program: jax.stages.Compiled, mesh: jax.sharding.Mesh, layout: str, m: int, n: int) -> None:
    """Nothing moves unless K is split; then a shard's part of the product and of its sums, in one all-reduce of int32."""
    a_spec, b_spec = LAYOUTS[layout]
    m, n = m // parts(mesh, a_spec[-2]), n // parts(mesh, b_spec[-1])
    expected = [] if a_spec[-1] is None else [Collective("all-reduce", {"s32"}, m * n + m + n)]
    assert collectives(program.as_text()) == expected
