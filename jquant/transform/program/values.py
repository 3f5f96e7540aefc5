"""What is known about the values of a program while it is read."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant.jaxprs import Equation, Literal, Path, Program
from jquant.transform.program.selections import Selection
from jquant.transform.program.weight_graph import WeightNode

# Operations that select some of their elements by an index, a condition or group sizes.
_SELECT = "gather", "dynamic_slice", "select_n", "ragged_dot", "ragged_dot_general"
# Operations on one array that move, repeat or convert its elements, and keep their origin.
_PRESERVE_ORIGIN = (
    "transpose",
    "reshape",
    "squeeze",
    "expand_dims",
    "broadcast_in_dim",
    "convert_element_type",
    "copy",
    "rev",
)


class Origin(NamedTuple):
    """How elements are selected from parameters.

    Attributes:
      reason: why they are not a known value.
      path: to the equation that selects; None for a branch.
    """

    reason: str
    path: Path | None


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """What is known about a value of a program. It is a known value if it depends on the parameters alone.

    Attributes:
      node: its node in the weight graph, if it is a known value.
      is_random: whether it depends on a random key among the parameters, and on no input.
      is_counter: whether it depends on the number of a loop's iteration, and on no input.
      is_flag: whether it holds truth values, perhaps as 0 and 1: a row of these, such as a one-hot vector, selects rows of
        the weights.
      origin: how its elements are selected, if they are selected from parameters.
      selection: of which parameters, if they are matrices of a stack.
      made: the node of a value that the program makes, such as `jax.numpy.arange`, or computes from such. It is a known
        value only where it changes the elements of parameters: elsewhere, it is an index, a mask or a table of positions.
    """

    node: WeightNode | None = None
    is_random: bool = False
    is_counter: bool = False
    is_flag: bool = False
    origin: Origin | None = None
    selection: Selection | None = None
    made: WeightNode | None = None


def unselected(value: Known) -> Known:
    """What is known about a value in the body of a loop that carries or slices it: not what it is selected from."""
    return dataclasses.replace(value, selection=None) if value.selection is not None else value


def carry_inside(body: Program, first: int, carry: list[Known]) -> list[Known]:
    """What is known about the carry in the body of a loop: the values that each iteration hands on unchanged.

    `first` is the index of the first input of the body that is carried.
    """
    inputs, outputs = body.jaxpr.invars[first:], body.jaxpr.outvars

    def counts(i: int) -> bool:
        """Whether each iteration adds the same number."""
        number = carry[i].node
        if number is None or number.leaves or number.shape:
            return False
        steps = (e for e in body.jaxpr.eqns if e.outvars[0] is outputs[i] and e.primitive.name == "add")
        return any(isinstance(step.invars[1], Literal) and step.invars[0] is inputs[i] for step in steps)

    return [value if inputs[i] is outputs[i] else Known(is_counter=counts(i)) for i, value in enumerate(carry)]


def carry_after(value: Known) -> Known:
    """What is known about a carried value after the loop: nothing, unless each iteration hands it on unchanged."""
    return value if value.node is not None else Known()


# Operations without operands whose values are those of a constant. (Others have none because they ask where they run.)
_MAKE_CONSTANTS = "iota", "pure_callback"
_TAKE_OR_MULTIPLY = ("gather", "dynamic_slice", "dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general")


def nodes_of(equation: Equation, inputs: Sequence[Known]) -> list[WeightNode] | None:
    """The nodes of the operands of an equation whose output depends on no input; None if it does, or may be another one."""
    if equation.effects or is_random(equation) or (not inputs and equation.primitive.name not in _MAKE_CONSTANTS):
        return None
    nodes = [node for value in inputs if (node := value.node or value.made) is not None]
    return nodes if len(nodes) == len(inputs) else None


def is_known(equation: Equation, inputs: Sequence[Known], nodes: Sequence[WeightNode]) -> bool:
    """Whether the outputs of an equation are known values; `nodes` are those of its operands.

    Those of what the program makes, such as an index, a mask or a table of positions, are known only where they change
    elements of parameters, without spreading them over the table. A look-up or a product is none, but may be a site: it
    reads parameters at the positions, or multiplies these by them.
    """
    if inputs and all(value.node is not None for value in inputs):
        return True
    extent = max((node.extent for node in nodes), default=0)
    if extent < 2 or equation.primitive.name in _TAKE_OR_MULTIPLY:
        return False
    shapes = [var.aval.shape for var in equation.outvars]
    return all(isinstance(size, int) for shape in shapes for size in shape) and max(map(math.prod, shapes)) <= extent


def is_random(equation: Equation) -> bool:
    """Whether a random key is among the inputs or the outputs."""
    if equation.primitive.name == "rng_uniform":  # whose state is that of the device
        return True
    types = [getattr(atom.aval, "dtype", None) for atom in (*equation.invars, *equation.outvars)]
    return any(dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) for dtype in types)


def unknown(equation: Equation, path: Path, inputs: list[Known]) -> Known:
    """An output that is not a known value."""
    name = equation.primitive.name
    independent_of_inputs = all(value.node is not None or value.is_random for value in inputs)
    if independent_of_inputs and (is_random(equation) or any(value.is_random for value in inputs)):
        return Known(is_random=True)
    if inputs and all(value.is_counter or (value.node is not None and not value.node.leaves) for value in inputs):
        return Known(is_counter=True)
    if name in _PRESERVE_ORIGIN:
        is_flag = equation.invars[0].aval.dtype == np.bool or inputs[0].is_flag
        return Known(is_flag=is_flag, origin=inputs[0].origin)
    if name in _SELECT and any(map(is_weight, inputs)):
        return Known(origin=Origin("its weights are selected by a value that is known only when it runs", path))
    return Known()


def is_weight(value: Known) -> bool:
    """Whether a value can be the weights of a site: known, computed from parameters, and at least a matrix."""
    return value.node is not None and len(value.node.shape) > 1 and bool(value.node.leaves)


def are_activations(inputs: Sequence[Known]) -> bool:
    """Whether no operand of a product is a known value, or selected from known ones, or random."""
    return not any(value.node is not None or value.is_random or value.origin for value in inputs)


def why_unknown(inputs: Sequence[Known]) -> str:
    """Why neither operand of a product is a known value."""
    if any(value.is_random for value in inputs):
        return "its weights depend on a random key"
    origins = [value.origin for value in inputs if value.origin]
    return origins[0].reason if origins else "neither operand depends on the parameters alone"
