"""What depends on the parameters alone: a graph in which each value is one node, however often it is computed.

A value inside a `jax.lax.scan` that is sliced from stacked parameters has the loop as a level. Its node stands for the
values of all layers, which are computed all at once.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant.transform import jaxprs
from jquant.transform.jaxprs import Equation

Level = Hashable  # one loop

_MOVING = "transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "rev", "copy", "concatenate"


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One value.

    Attributes:
      shape, dtype: those of the value in one layer.
      levels: the loops that stack it, outermost first.
      leaves: the indices of the parameters that it depends on.
      text: how it is computed. It is the same for equal values, also in programs for inputs of other shapes.
    """

    shape: tuple[Any, ...]
    dtype: Any
    levels: tuple[Level, ...]
    leaves: tuple[int, ...]
    text: str
    operation: "Operation | Leaf | Constant | Layer"


class Leaf(NamedTuple):
    """A parameter."""

    number: int


class Constant(NamedTuple):
    """A constant of the function."""

    value: Any


class Layer(NamedTuple):
    """A slice of stacked parameters in each pass of a loop."""

    stacked: Node


class Operation(NamedTuple):
    """An output of an equation."""

    equation: Equation
    inputs: tuple[Node, ...]
    output: int


class Graph:
    """The nodes of one program. Equal values are one node."""

    def __init__(self) -> None:
        self._nodes: dict[Hashable, Node] = {}

    def _node(self, key: Hashable, *fields: Any) -> Node:
        try:
            return self._nodes.setdefault(key, Node(*fields))
        except TypeError:  # the parameters of an equation cannot be compared
            return Node(*fields)

    def leaf(self, number: int, aval: Any) -> Node:
        return self._node((Leaf, number), aval.shape, aval.dtype, (), (number,), f"p{number}", Leaf(number))

    def constant(self, value: Any, aval: Any) -> Node:
        key: Hashable = (Constant, id(value))
        if not aval.shape and isinstance(value, bool | int | float | complex | np.generic | np.ndarray):
            key = Constant, str(aval.dtype), np.asarray(value).tobytes()
        return self._node(key, aval.shape, aval.dtype, (), (), "c", Constant(value))

    def layer(self, stacked: Node, level: Level) -> Node:
        if is_cast(stacked):
            return self._cast(stacked, self.layer(_uncast(stacked), level))
        levels = *stacked.levels, level
        shape, text = stacked.shape[1:], f"layer({stacked.text})"
        return self._node((Layer, stacked, level), shape, stacked.dtype, levels, stacked.leaves, text, Layer(stacked))

    def operation(self, equation: Equation, inputs: Sequence[Node], output: int, levels: Sequence[Level]) -> Node:
        """An output of an equation; `levels` are all loops around it, in their order."""
        aval = equation.outvars[output].aval
        if equation.primitive.name in _MOVING and _are_cast_alike(inputs):
            moved = self.operation(equation, list(map(_uncast, inputs)), output, levels)
            return self._cast(inputs[0], moved)
        dtype = inputs[0].dtype if equation.primitive.name in _MOVING else aval.dtype
        return self._operation(equation, inputs, output, levels, aval.shape, dtype)

    def _cast(self, cast: Node, node: Node) -> Node:
        """The same cast, of another node. Casts come after what moves elements, so that `root` finds the parameter."""
        assert isinstance(cast.operation, Operation)
        return self._operation(cast.operation.equation, [node], 0, node.levels, node.shape, cast.dtype)

    def _operation(
        self, equation: Equation, inputs: Sequence[Node], output: int, levels: Sequence[Level], shape: tuple, dtype: Any
    ) -> Node:
        parameters = tuple(sorted(equation.params.items()))
        key = Operation, equation.primitive, str(parameters), tuple(inputs), output
        mine = tuple(level for level in levels if any(level in node.levels for node in inputs))
        leaves = tuple(sorted({leaf for node in inputs for leaf in node.leaves}))
        text = f"{equation.primitive}[{parameters}][{output}]({','.join(node.text for node in inputs)})"
        text = hashlib.sha256(text.encode()).hexdigest()  # keeps the length constant for a value that is read often
        operation = Operation(equation, tuple(inputs), output)
        return self._node(key, shape, dtype, mine, leaves, text, operation)


def root(node: Node) -> tuple[Node, tuple[int, ...]]:
    """A value without its transpositions and float casts, and for each dimension, which one of that value it is."""
    dimensions = tuple(range(len(node.shape)))
    while isinstance(node.operation, Operation):
        equation = node.operation.equation
        name = equation.primitive.name
        if name == "transpose":
            permutation = equation.params["permutation"]
            dimensions = tuple(permutation[dimension] for dimension in dimensions)
        elif not is_cast(node):
            break
        (node,) = node.operation.inputs
    return node, dimensions


def is_float(node: Node) -> bool:
    return jnp.issubdtype(node.dtype, np.floating)


def is_cast(node: Node) -> bool:
    """Whether the node casts one float type to another."""
    operation = node.operation
    if not isinstance(operation, Operation) or operation.equation.primitive.name != "convert_element_type":
        return False
    return is_float(node) and is_float(operation.inputs[0])


def _uncast(cast: Node) -> Node:
    assert isinstance(cast.operation, Operation)
    return cast.operation.inputs[0]


def _are_cast_alike(nodes: Sequence[Node]) -> bool:
    return all(map(is_cast, nodes)) and len({(node.dtype, _uncast(node).dtype) for node in nodes}) == 1


def values(nodes: Sequence[Node], parameters: Sequence[Any]) -> list[Any]:
    """The values of nodes, stacked over their levels, from the leaves of the parameters."""
    found: dict[Node, Any] = {}

    def value(node: Node) -> Any:
        if node not in found:
            found[node] = computed(node)
        return found[node]

    def computed(node: Node) -> Any:
        match node.operation:
            case Leaf(number):
                return parameters[number]
            case Constant(constant):
                return constant
            case Layer(stacked):
                return value(stacked)
            case Operation(equation, inputs, output):
                function = functools.partial(jaxprs.bind, equation)
                for level in reversed(node.levels):
                    function = jax.vmap(function, tuple(0 if level in each.levels else None for each in inputs))
                return function(*map(value, inputs))[output]

    return list(map(value, nodes))
