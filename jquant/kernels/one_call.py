"""Formulas that one call of jquant-native takes the place of, in programs for CPUs that have it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from jquant.arithmetic.broadcasting import to_rank
from jquant.kernels import implementations
from jquant.lowering import recording
from jquant.lowering.partitioned import unless_partitioned


def arrays(formula: Callable, kernel: Callable, *operands: jax.Array) -> Sequence[jax.Array]:
    """``kernel(*operands)`` on CPUs where the library is the default and the kernel does not raise `NotImplementedError`.

    Elsewhere ``formula(*operands)``. Both return the same sequence of arrays, and take more leading dimensions, as
    `unless_partitioned` asks.
    """

    def by_library(*operands: jax.Array) -> Sequence[jax.Array]:
        return kernel(*operands) if implementations.is_native_default() else formula(*operands)

    on_this_cpu = implementations.unless_declined(by_library, formula)
    return unless_partitioned(formula, formula, *operands, on_this_cpu=on_this_cpu)


def integers(formula: Callable[..., jax.Array], kernel: Callable[..., jax.Array], rank: int, *operands: Any) -> jax.Array:
    """The same for operands that are trees of arrays, and one array of integers, which has no derivative.

    All arrays get `rank` dimensions, so that they broadcast where `jax.vmap` adds some in front of a few.
    """
    if recording.is_active():
        return formula(*operands)
    leaves, structure = jax.tree.flatten(jax.tree.map(lambda x: to_rank(lax.stop_gradient(x), rank), operands))

    def of_leaves(function: Callable[..., jax.Array]) -> Callable[..., list[jax.Array]]:
        return lambda *leaves: [function(*jax.tree.unflatten(structure, leaves))]

    (result,) = arrays(of_leaves(formula), of_leaves(kernel), *leaves)
    return result
