"""Differences in Pallas' interface between jax 0.10 and 0.12: a function for each."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend import core


def load(ref: Any, index: tuple, layout: Any) -> jax.Array:
    """The block of a GPU reference at `index`, in `layout`. From 0.11 on the index is part of the reference."""
    function: Any = plgpu.load
    arguments = (ref, index) if jax.__version_info__ < (0, 11) else (ref.at[index],)
    return function(*arguments, layout=layout, optimized=False)


def transposed(ref: Any) -> Any:
    """A matrix in the shared memory of a GPU, transposed. From 0.11 on, references have a method for that."""
    if jax.__version_info__ < (0, 11):
        return plgpu.transpose_ref(ref, (1, 0))
    return ref.transpose((1, 0))


def inlined(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`function` with the custom derivatives in it removed, which Mosaic GPU lowers only from 0.11 on."""
    if jax.__version_info__ >= (0, 11):
        return function

    def evaluated(*arguments: jax.Array) -> jax.Array:
        program = jax.make_jaxpr(function)(*arguments)
        (result,) = _evaluate(program.jaxpr, program.consts, arguments)
        return result

    return evaluated


def _evaluate(jaxpr: core.Jaxpr, constants: Sequence, arguments: Sequence) -> list:
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else values[variable]

    for equation in jaxpr.eqns:
        operands = [read(variable) for variable in equation.invars]
        if equation.primitive.name == "custom_jvp_call":
            program = equation.params["call_jaxpr"]
            results = _evaluate(program.jaxpr, program.consts, operands)
        else:
            results = equation.primitive.bind(*operands, **equation.params)
            results = results if equation.primitive.multiple_results else [results]
        values.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]
