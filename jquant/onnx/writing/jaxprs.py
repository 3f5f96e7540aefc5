"""Access to the jaxprs that are written as graphs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Literal

_CALLS = {  # the primitives that call one program with their inputs, and the parameter that holds it
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_lin": "call_jaxpr",
}


def is_literal(atom: Any) -> bool:
    return isinstance(atom, Literal)


def called(equation: Any) -> Any:
    """The closed jaxpr that an equation calls once with its inputs; None if it is no such call."""
    name = _CALLS.get(equation.primitive.name)
    return None if name is None else closed(equation.params[name])


def closed(jaxpr: Any) -> Any:
    """The jaxpr in the parameters of an equation, closed."""
    return jaxpr if hasattr(jaxpr, "consts") else ClosedJaxpr(jaxpr, ())


def bind(equation: Any, *values: Any) -> list[Any]:
    """The outputs of an equation for these inputs."""
    parameters = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager:
        outputs = equation.primitive.bind(*values, **parameters)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def traced(function: Callable[..., Any], *types: Any) -> Any:
    """The closed jaxpr of a function of arrays of these types."""
    return jax.make_jaxpr(function)(*types)


class Scan(NamedTuple):
    """A `jax.lax.scan`."""

    body: Any
    num_constants: int
    num_carry: int
    length: Any
    reverse: bool


def scan(equation: Any) -> Scan:
    parameters = equation.params
    if "ft_in" in parameters:
        num_constants, num_carry, _ = map(len, parameters["ft_in"].unpack())
    else:
        num_constants, num_carry = parameters["num_consts"], parameters["num_carry"]
    return Scan(closed(parameters["jaxpr"]), num_constants, num_carry, parameters["length"], parameters["reverse"])


class WhileLoop(NamedTuple):
    """A `jax.lax.while_loop`."""

    condition: Any
    body: Any
    num_condition_constants: int
    num_body_constants: int


def while_loop(equation: Any) -> WhileLoop:
    parameters = equation.params
    return WhileLoop(
        closed(parameters["cond_jaxpr"]),
        closed(parameters["body_jaxpr"]),
        parameters["cond_nconsts"],
        parameters["body_nconsts"],
    )


def branches(equation: Any) -> list[Any]:
    """The closed jaxprs of a `jax.lax.cond` or `jax.lax.switch`."""
    return list(map(closed, equation.params["branches"]))
