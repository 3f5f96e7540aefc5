"""Finds what a program computes from its parameters and constants alone: it is the same in every call."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr, Literal

from jquant import jaxprs

# Primitives that move elements, which compilers do while they read them.
_SHAPES = ["broadcast_in_dim", "expand_dims", "reshape", "squeeze", "transpose"]
_PARTS = ["concatenate", "rev", "slice", "split"]
_NOTHING = ["copy", "optimization_barrier", "stop_gradient"]
MOVES = frozenset([*_SHAPES, *_PARTS, *_NOTHING])


def of_parameters(function: Callable, parameters: Any, *data: Any) -> list[Any]:
    """The equations of ``function(parameters, *data)`` that read nothing of `data`, without those of `MOVES`."""
    leaves, tree = jax.tree.flatten(parameters)
    traced = jax.make_jaxpr(lambda leaves, *data: function(jax.tree.unflatten(tree, leaves), *data))(leaves, *data)
    found: list[Any] = []
    _visit(traced.jaxpr, [False] * len(leaves) + [True] * (len(traced.jaxpr.invars) - len(leaves)), found)
    return found


def _visit(jaxpr: Jaxpr, changes: Sequence[bool], found: list[Any]) -> list[bool]:
    """Whether the outputs follow from what changes from call to call, for inputs of which some do."""
    changing = {variable for variable, flag in zip(jaxpr.invars, changes, strict=True) if flag}

    def is_changing(atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in changing

    for equation in jaxpr.eqns:
        flags = list(map(is_changing, equation.invars))
        if any(flags):
            changing.update(equation.outvars)
            _visit_inside(equation, flags, found)
            continue
        inside = list(jaxprs.programs(equation))
        if equation.primitive.name not in MOVES and not (inside and all(map(_moves, inside))):
            found.append(equation)
    return list(map(is_changing, jaxpr.outvars))


def _moves(jaxpr: Jaxpr) -> bool:
    """Whether a program moves elements, and nothing else."""
    return all(
        equation.primitive.name in MOVES or (inside and all(map(_moves, inside)))
        for equation in jaxpr.eqns
        for inside in [list(jaxprs.programs(equation))]
    )


def _visit_inside(equation: Any, flags: list[bool], found: list[Any]) -> None:
    if equation.primitive.name == "scan":
        loop = jaxprs.loop(equation)
        _visit_steps(loop.body.jaxpr, flags, slice(loop.num_constants, loop.num_constants + loop.num_carry), found)
    elif equation.primitive.name == "while":
        loop = jaxprs.while_loop(equation)
        flags = flags[loop.num_condition_constants :]
        _visit_steps(loop.body.jaxpr, flags, slice(loop.num_body_constants, len(flags)), found)
    else:
        for jaxpr in jaxprs.programs(equation):
            count = len(jaxpr.invars)  # some primitives have operands of their own before those of their programs
            _visit(jaxpr, flags[len(flags) - count :] if count <= len(flags) else [True] * count, found)


def _visit_steps(jaxpr: Jaxpr, flags: list[bool], carried: slice, found: list[Any]) -> None:
    """What is carried from step to step changes if a step makes it so."""
    while True:
        inside: list[Any] = []
        outputs = _visit(jaxpr, flags, inside)[: carried.stop - carried.start]
        after = [old or new for old, new in zip(flags[carried], outputs, strict=True)]
        if after == flags[carried]:
            found += inside
            return
        flags = [*flags[: carried.start], *after, *flags[carried.stop :]]
