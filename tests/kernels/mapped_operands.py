"""Products with block scales, with each of their operands mapped alone by `jax.vmap`."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jquant.kernels import block_dot


def outputs(monkeypatch: pytest.MonkeyPatch, function: Callable, operands: Any) -> list[jax.Array]:
    """For each array in `operands`, the output of `block_dot`, implemented by `function`, with that array alone mapped."""
    monkeypatch.setattr(block_dot, "function_for", lambda *_: block_dot.with_epilogue(function))
    leaves, tree = jax.tree.flatten(operands)

    def each_alone(*leaves: jax.Array) -> Iterator[jax.Array]:
        for place, leaf in enumerate(leaves):
            axes = [0 if other == place else None for other in range(len(leaves))]
            mapped = jnp.stack([leaf, leaf[::-1]])
            multiply = jax.vmap(lambda *leaves: block_dot.block_dot(*tree.unflatten(leaves)), axes)
            yield multiply(*leaves[:place], mapped, *leaves[place + 1 :])

    return jax.jit(lambda *leaves: [*each_alone(*leaves)])(*leaves)
