"""Which axes of a mesh a value varies over, inside a `jax.shard_map`."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp


def varying_as(operands: Any, x: jax.Array) -> jax.Array:
    """`x`, which varies over every axis that an array in `operands` does: the start of a loop that computes with them.

    It becomes a choice between itself and itself, of which a compiler leaves nothing.
    """
    never = (jnp.any(array[:0] != 0) for array in jax.tree.leaves(operands))
    return jnp.where(functools.reduce(operator.or_, never), x, x)
