"""What tells the uses of one weight apart: how the program computes what is multiplied by it, whatever the sizes are.

Sites of one weight are numbered in the order of the program, which may be another one for inputs of other sizes.
"""

import collections
import contextlib
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax

from jquant.jaxprs import Equation
from jquant.transform.program.values import Known
from jquant.transform.program.weight_graph import Constant, WeightNode

_MOST_EQUATIONS = 256  # of those that lead to a use, how many are compared in detail, the nearest ones first
_LARGEST_CONSTANT = 2**20  # elements of those that are compared


class Trail:
    """How a value is computed.

    Attributes:
      inputs: the trails of what it is computed from.
      structure: a text that is the same for the same operations on the same parameters and inputs, whatever the sizes and
        constants, in all processes.
    """

    __slots__ = "_details", "inputs", "structure"

    def __init__(self, label: Any, inputs: Sequence["Trail"] = (), details: Equation | WeightNode | None = None):
        self.inputs, self._details = tuple(inputs), details
        text = repr((label, *(trail.structure for trail in self.inputs)))
        self.structure = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def details(self) -> collections.Counter[Any]:
        """The parameters, sizes and constants of the equations that lead here; other sizes of the input may change some."""
        counts: collections.Counter[Any] = collections.Counter()
        queue: collections.deque[Trail] = collections.deque([self])
        seen: set[Trail] = {self}
        while queue and len(seen) <= _MOST_EQUATIONS:
            trail = queue.popleft()
            counts.update(_details(trail._details))
            new = [each for each in dict.fromkeys(trail.inputs) if each not in seen]
            seen.update(new)
            queue.extend(new)
        return counts


def _details(what: Equation | WeightNode | None) -> Iterator[Any]:
    if isinstance(what, WeightNode):
        if what.shape:
            if not what.leaves and math.prod(what.shape) <= _LARGEST_CONSTANT:
                yield "constant", what.text
        elif isinstance(what.operation, Constant):
            with contextlib.suppress(TypeError, RuntimeError):  # a tracer, or an array that is not here
                yield "constant", complex(what.operation.value)
    elif what is not None:
        name = what.primitive.name
        for key, value in what.params.items():
            if not any(hasattr(leaf, "eqns") for leaf in jax.tree.leaves(value, is_leaf=lambda leaf: hasattr(leaf, "eqns"))):
                yield name, key, str(value)
        for axis, size in enumerate(what.outvars[0].aval.shape):
            yield name, axis, str(size)


class Trails:
    """The trails of the values of a program."""

    def __init__(self) -> None:
        self._trails: dict[Known, Trail] = {}

    def of(self, value: Known) -> Trail:
        trail = self._trails.get(value)
        if trail is None:
            node = value.node
            trail = Trail(("unknown",) if node is None else ("known", node.leaves), (), node)
        return trail

    def name(self, values: Iterable[Known]) -> None:
        """Notes the inputs of the function."""
        for number, value in enumerate(values):
            self._trails[value] = Trail(("input", number))

    def enter(self, label: str, inside: Iterable[Known], outside: Iterable[Known]) -> None:
        """Notes what values in a body come from."""
        for number, (inner, outer) in enumerate(zip(inside, outside, strict=True)):
            if inner is not outer:
                self._trails.setdefault(inner, Trail((label, number), [self.of(outer)]))

    def add(self, output: Known, equation: Equation, number: int, inputs: Sequence[Known]) -> None:
        """Notes an output of an equation, unless it is handed on by a call."""
        if output.node is None and output not in self._trails:
            self._trails[output] = self.use(equation, inputs, number)

    def use(self, equation: Equation, inputs: Sequence[Known], number: int = 0) -> Trail:
        """The trail of an equation."""
        return Trail((equation.primitive.name, number), list(map(self.of, inputs)), equation)
