"""The table of writers: what each primitive of JAX, and each operator of jquant, becomes in a graph."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jquant.onnx.graphs.graph import DEFAULT_DOMAIN
from jquant.onnx.writing.builder import Builder
from jquant.onnx.writing.tensor import Tensor

_Function = TypeVar("_Function", bound=Callable[..., Any])
Rule = Callable[[Builder, Any, list[Tensor]], Tensor | Sequence[Tensor]]

PRIMITIVES: dict[str, Rule] = {}
"""From a builder, an equation of a primitive and its operands to the results."""


def primitive(*names: str) -> Callable[[_Function], _Function]:
    """Adds the decorated function to `PRIMITIVES` for the primitives with these names, and returns it unchanged."""

    def register(function: _Function) -> _Function:
        for name in names:
            PRIMITIVES[name] = function
        return function

    return register


@dataclasses.dataclass(frozen=True, eq=False)
class Writer:
    """How calls of an operator are written.

    Attributes:
      function: takes a `Builder`, the types of the results, and the parameters of the operator's formula by their names,
        with `Tensor` for arrays. It returns the results, in the structure of the formula; or None for a call that the node
        does not express, which is then written as its formula.
      node, domain, since: the node that says the same, its domain, and the first version of the operator set that has it;
        None if it is any node of a file. The function is called only if the domain is allowed.
      keeps_weights: whether known integers of 8 bits are stored even for the formula, not folded to floats.
    """

    function: Callable[..., Any]
    node: str | None
    domain: str = DEFAULT_DOMAIN
    since: int = 1
    keeps_weights: bool = False


WRITERS: dict[str, list[Writer]] = {}
"""By operator: the first one that returns results is used."""


def nodes(operator: str) -> list[tuple[str, str]]:
    """The domain and the name of every node that calls of an operator become, in the order in which they are tried.

    What no node expresses, and an operator without any, becomes the nodes of its formula.
    """
    written = ((entry.domain, entry.node) for entry in WRITERS.get(operator, ()) if entry.node is not None)
    return list(dict.fromkeys(written))


def writer(
    operator: str, *, node: str | None, domain: str = DEFAULT_DOMAIN, since: int = 1, keeps_weights: bool = False
) -> Callable[[_Function], _Function]:
    """Adds the decorated function to `WRITERS`, and returns it unchanged. The arguments are those of `Writer`."""

    def register(function: _Function) -> _Function:
        WRITERS.setdefault(operator, []).append(Writer(function, node, domain, since, keeps_weights))
        return function

    return register
