"""The formula of an operator as a jitted function."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax

from jquant.lowering.recording import recorded

_Result = TypeVar("_Result")


def formula(operator: str, *, static: Sequence[str] = ()) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Jits the formula of an operator, whose parameters in `static` are constants of its program.

    Profiles, and the names in compiled programs, show what it computes under the operator's name.
    """

    def decorate(function: Callable[..., _Result]) -> Callable[..., _Result]:
        named = recorded(operator, static=static)(jax.named_scope(operator)(function))
        return jax.jit(named, static_argnames=tuple(static))

    return decorate
