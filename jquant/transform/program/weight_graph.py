"""The values that depend on the parameters alone, as a graph in which equal values are one node.

A value inside a `jax.lax.scan` that is sliced from stacked parameters has the loop as a level. Its node stands for the
values of all layers, which are computed at once.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant import jaxprs
from jquant.jaxprs import Equation

Level = Hashable  # a loop, by the path to its equation
Leaves = Sequence[Any] | Mapping[int, Any]  # parameters by their number

_VARY = "pvary"  # marks a value inside shard_map as one that may differ between devices
_WHERE = "sharding", "out_sharding"  # parameters that say where elements lie, and do not change them
# Operations that move or repeat elements and do not change them, so that a cast may as well come after them.
_COMMUTE_WITH_CASTS = (
    "transpose",
    "reshape",
    "squeeze",
    "expand_dims",
    "broadcast_in_dim",
    "slice",
    "rev",
    "copy",
    "concatenate",
)


@dataclasses.dataclass(frozen=True, eq=False)
class WeightNode:
    """A value that depends on the parameters alone.

    Attributes:
      shape, dtype: those of the value in one layer.
      levels: the loops that stack it, outermost first.
      leaves: the indices of the parameters that it depends on.
      operation: what the value is: a parameter, a constant, a layer of another value, or an output of an equation.
    """

    shape: tuple[Any, ...]
    dtype: Any
    levels: tuple[Level, ...]
    leaves: tuple[int, ...]
    operation: "Operation | Leaf | Constant | Layer | Shard"

    @functools.cached_property  # of weights alone: a constant may be large, and most enter none
    def text(self) -> str:
        """How the value is computed. Values of the same text are equal, also in programs for inputs of other shapes."""
        match self.operation:
            case Leaf(number):
                return f"p{number}"
            case Constant(value):
                return f"c{_digest(value)}"
            case Layer(stacked):
                return f"layer({stacked.text})"
            case Shard(whole, spec):
                return f"shard[{spec}]({whole.text})"
            case Operation(equation, inputs, output):
                parameters = tuple(sorted(each for each in equation.params.items() if each[0] not in _WHERE))
                text = f"{equation.primitive}[{parameters}][{output}]({','.join(node.text for node in inputs)})"
                return hashlib.sha256(text.encode()).hexdigest()  # of constant length, however often values are read

    @functools.cached_property
    def extent(self) -> int:
        """How many elements of parameters it has at most, however often it repeats them; 0 if its sizes are not known."""
        size = math.prod(self.shape) if all(isinstance(size, int) for size in self.shape) else 0
        match self.operation:
            case Constant():
                return 0
            case Operation(equation, inputs, _) if equation.primitive.name != "dot_general":
                return min(size, max((node.extent for node in inputs), default=0))
        return size


class Leaf(NamedTuple):
    """A parameter."""

    number: int


class Constant(NamedTuple):
    """A constant of the function."""

    value: Any


class Layer(NamedTuple):
    """A slice of stacked parameters in each iteration of a loop."""

    stacked: WeightNode


class Shard(NamedTuple):
    """The part of a value on each device, inside a `jax.shard_map`; `spec` has the axes that split each dimension."""

    whole: WeightNode
    spec: tuple[Any, ...]


class Operation(NamedTuple):
    """An output of an equation."""

    equation: Equation
    inputs: tuple[WeightNode, ...]
    output: int


class WeightGraph:
    """The nodes of one program. Equal values are one node."""

    def __init__(self) -> None:
        self._nodes: dict[Hashable, WeightNode] = {}

    def _unique(self, key: Hashable, node: WeightNode) -> WeightNode:
        """The node of this key: an earlier one, or `node`."""
        try:
            return self._nodes.setdefault(key, node)
        except TypeError:  # the parameters of an equation cannot be compared
            return node

    def leaf(self, number: int, aval: Any) -> WeightNode:
        """A parameter."""
        node = WeightNode(shape=aval.shape, dtype=aval.dtype, levels=(), leaves=(number,), operation=Leaf(number))
        return self._unique((Leaf, number), node)

    def constant(self, value: Any, aval: Any) -> WeightNode:
        """A constant of the function. Equal scalars are one node."""
        key: Hashable = (Constant, id(value))
        if not aval.shape and isinstance(value, bool | int | float | complex | np.generic | np.ndarray):
            key = Constant, str(aval.dtype), np.asarray(value).tobytes()
        node = WeightNode(shape=aval.shape, dtype=aval.dtype, levels=(), leaves=(), operation=Constant(value))
        return self._unique(key, node)

    def layer(self, stacked: WeightNode, level: Level) -> WeightNode:
        """The slice of a stacked value in each iteration of a loop."""
        if is_cast(stacked):
            return self._cast(stacked, self.layer(_uncast(stacked), level))
        node = WeightNode(
            shape=stacked.shape[1:],
            dtype=stacked.dtype,
            levels=(*stacked.levels, level),
            leaves=stacked.leaves,
            operation=Layer(stacked),
        )
        return self._unique((Layer, stacked, level), node)

    def shard(self, whole: WeightNode, spec: Sequence[Any], shape: tuple[Any, ...]) -> WeightNode:
        """The part of a value, of this shape, on each device."""
        if is_cast(whole):
            return self._cast(whole, self.shard(_uncast(whole), spec, shape))
        entries = (*spec, *(None for _ in shape[len(spec) :]))
        node = dataclasses.replace(whole, shape=shape, operation=Shard(whole, entries))
        return self._unique((Shard, whole, entries), node)

    def whole(self, node: WeightNode) -> Shard | None:
        """The value that the parts of a node, inside a `jax.shard_map`, are split from; None if they are computed there."""
        if isinstance(node.operation, Shard):
            return node.operation
        if not isinstance(node.operation, Layer):
            return None
        stacked = self.whole(node.operation.stacked)
        if stacked is None or stacked.spec[0] is not None:
            return None
        return Shard(self.layer(stacked.whole, node.levels[-1]), stacked.spec[1:])

    def operation(
        self, equation: Equation, inputs: Sequence[WeightNode], output: int, levels: Sequence[Level]
    ) -> WeightNode:
        """An output of an equation; `levels` are all loops around it, in their order."""
        aval = equation.outvars[output].aval
        commutes = equation.primitive.name in _COMMUTE_WITH_CASTS
        if commutes and _are_cast_alike(inputs):
            moved = self.operation(equation, list(map(_uncast, inputs)), output, levels)
            return self._cast(inputs[0], moved)
        dtype = inputs[0].dtype if commutes else aval.dtype
        return self._operation(equation, inputs, output, levels, aval.shape, dtype)

    def _cast(self, cast: WeightNode, node: WeightNode) -> WeightNode:
        """`cast` applied to another node. Casts come after what moves elements, so that `root` finds the parameter."""
        assert isinstance(cast.operation, Operation)
        return self._operation(cast.operation.equation, [node], 0, node.levels, node.shape, cast.dtype)

    def _operation(
        self,
        equation: Equation,
        inputs: Sequence[WeightNode],
        output: int,
        levels: Sequence[Level],
        shape: tuple,
        dtype: Any,
    ) -> WeightNode:
        parameters = tuple(sorted(equation.params.items()))
        node = WeightNode(
            shape=shape,
            dtype=dtype,
            levels=tuple(level for level in levels if any(level in node.levels for node in inputs)),
            leaves=tuple(sorted({leaf for node in inputs for leaf in node.leaves})),
            operation=Operation(equation, tuple(inputs), output),
        )
        return self._unique((Operation, equation.primitive, str(parameters), tuple(inputs), output), node)


def _digest(value: Any) -> str:
    """A text that arrays of equal type and bytes share. What has no bytes here, such as a tracer, equals itself alone."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return f"#{id(value)}"
    content = hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return f"{array.dtype}{array.shape}{content.hexdigest()}"


def root(node: WeightNode) -> tuple[WeightNode, tuple[int, ...]]:
    """A value without its transpositions and float casts; and for each dimension of `node`, that of the value."""
    dimensions = tuple(range(len(node.shape)))
    while isinstance(node.operation, Operation):
        equation = node.operation.equation
        name = equation.primitive.name
        if name == "transpose":
            permutation = equation.params["permutation"]
            dimensions = tuple(permutation[dimension] for dimension in dimensions)
        elif not is_cast(node) and name != _VARY:
            break
        (node,) = node.operation.inputs
    return node, dimensions


def is_float(node: WeightNode) -> bool:
    return jnp.issubdtype(node.dtype, np.floating)


def is_cast(node: WeightNode) -> bool:
    """Whether the node casts one float type to another."""
    operation = node.operation
    if not isinstance(operation, Operation) or operation.equation.primitive.name != "convert_element_type":
        return False
    return is_float(node) and is_float(operation.inputs[0])


def _uncast(cast: WeightNode) -> WeightNode:
    assert isinstance(cast.operation, Operation)
    return cast.operation.inputs[0]


def _are_cast_alike(nodes: Sequence[WeightNode]) -> bool:
    return all(map(is_cast, nodes)) and len({(node.dtype, _uncast(node).dtype) for node in nodes}) == 1


def values(nodes: Sequence[WeightNode], parameters: Leaves) -> list[Any]:
    """The values of nodes, stacked over their levels, from the leaves of the parameters."""
    return list(map(_Values(parameters).value, nodes))


class _Values:
    """The values of nodes that have been computed. (Functions that call each other would keep them alive.)"""

    def __init__(self, parameters: Leaves):
        self._parameters = parameters
        self._computed: dict[WeightNode, Any] = {}

    def value(self, node: WeightNode) -> Any:
        if node not in self._computed:
            self._computed[node] = self._compute(node)
        return self._computed[node]

    def _compute(self, node: WeightNode) -> Any:
        match node.operation:
            case Leaf(number):
                return self._parameters[number]
            case Constant(constant):
                return constant
            case Layer(stacked):
                return self.value(stacked)
            case Shard():
                raise AssertionError("the parts of weights are not computed; the weights are packed outside")
            case Operation(equation, inputs, output):
                function = functools.partial(jaxprs.bind, equation)
                for level in reversed(node.levels):
                    function = jax.vmap(function, tuple(0 if level in each.levels else None for each in inputs))
                return function(*map(self.value, inputs))[output]
