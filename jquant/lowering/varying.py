"""The axes of a mesh over which a value varies, inside `jax.shard_map`."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp


def varying_as(operands: Any, x: jax.Array) -> jax.Array:
    """`x`, made to vary over every axis that an array in `operands` does: the start of a loop that computes with them.

    A condition on the operands selects between `x` and `x`, which compilers remove.
    """
    never = (jnp.any(array[:0] != 0) for array in jax.tree.leaves(operands))
    return jnp.where(functools.reduce(operator.or_, never), x, x)
