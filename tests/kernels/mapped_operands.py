"""Products on blocks by one function, with each of their operands mapped alone by `jax.vmap`."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jquant.kernels import block_dot


def outputs(monkeypatch: pytest.MonkeyPatch, function: Callable, operands: Any) -> list[jax.Array]:
    """One output for each array in `operands`: that of `block_dot` where it is mapped, and no other."""
    monkeypatch.setattr(block_dot, "function_for", lambda platform, implementation: function)
    leaves, tree = jax.tree.flatten(operands)

    def all_alone(*leaves: jax.Array) -> Iterator[jax.Array]:
        for place, leaf in enumerate(leaves):
            axes = [0 if other == place else None for other in range(len(leaves))]
            mapped = jnp.stack([leaf, leaf[::-1]])
            multiply = jax.vmap(lambda *leaves: block_dot.block_dot(*tree.unflatten(leaves)), axes)
            yield multiply(*leaves[:place], mapped, *leaves[place + 1 :])

    return jax.jit(lambda *leaves: [*all_alone(*leaves)])(*leaves)
