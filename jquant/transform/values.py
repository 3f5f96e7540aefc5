"""What is known about a value while a program is read."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jquant.transform.jaxprs import Equation, Program
from jquant.transform.weight_graph import Node

_PICKING = "gather", "dynamic_slice", "select_n", "ragged_dot", "ragged_dot_general"
_MOVING = "transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "convert_element_type", "copy", "rev"


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """What is known about a value while a program is read.

    Attributes:
      node: its node, if it depends on nothing but parameters and constants.
      is_random: whether it depends on a random key among the parameters, and on no input.
      is_flag: whether it is a truth value, as 0 and 1: a row of these picks rows of the weights.
      origin: why it is not a known value, if it comes from little more than parameters.
    """

    node: Node | None = None
    is_random: bool = False
    is_flag: bool = False
    origin: str | None = None


def carried(body: Program, first: int, carry: list[Value]) -> list[Value]:
    """What is known about the carry of a loop: the values that each pass hands on unchanged."""
    inputs, outputs = body.jaxpr.invars[first:], body.jaxpr.outvars
    return [value if inputs[i] is outputs[i] else Value() for i, value in enumerate(carry)]


def after(value: Value) -> Value:
    """What is known about the carry after a loop: nothing, unless each pass hands it on unchanged."""
    return value if value.node is not None else Value()


def is_random(equation: Equation) -> bool:
    """Whether a random key goes in or out."""
    types = [getattr(atom.aval, "dtype", None) for atom in (*equation.invars, *equation.outvars)]
    return any(dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) for dtype in types)


def unknown(equation: Equation, inputs: list[Value]) -> Value:
    """An output that is not a known value."""
    name = equation.primitive.name
    of_parameters = all(value.node is not None or value.is_random for value in inputs)
    if of_parameters and (is_random(equation) or any(value.is_random for value in inputs)):
        return Value(is_random=True)
    if name in _MOVING:
        of_flags = equation.invars[0].aval.dtype == np.bool or inputs[0].is_flag
        return Value(is_flag=of_flags, origin=inputs[0].origin)
    weights = [value.node for value in inputs if value.node is not None and len(value.node.shape) > 1 and value.node.leaves]
    if name in _PICKING and weights:
        return Value(origin="its weights are selected by a value that is known only when it runs")
    return Value()


def why_unknown(inputs: Sequence[Value]) -> str:
    if any(value.is_random for value in inputs):
        return "its weights depend on a random key"
    origins = [value.origin for value in inputs if value.origin]
    return origins[0] if origins else "neither operand depends on the parameters alone"
