"""If: decided while tracing if its condition is known, otherwise `lax.cond`."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.graphs.values import is_static
from jquant.onnx.nodes.subgraphs import as_arrays
from jquant.onnx.running.registry import converter


@converter("If", since=1, prefers_static=("cond",))
def if_(cond, *, then_branch, else_branch):
    """If the condition is known while tracing, it chooses the branch, and the other is never traced."""
    if is_static(cond):
        return tuple((then_branch if cond.item() else else_branch)())
    return tuple(lax.cond(cond.reshape(()), _with_name("then_branch", then_branch), _with_name("else_branch", else_branch)))


def _with_name(name: str, branch: Callable[..., Any]) -> Callable[[], list[jax.Array]]:
    """A branch whose errors name it."""

    def traced() -> list[jax.Array]:
        try:
            return as_arrays(branch())
        except ModelError as error:
            raise ModelError(f"its {name} cannot be computed: {error}") from error

    return traced
