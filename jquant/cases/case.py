"""The definition of a case."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROWS, CHANNELS = 24, 5
FLOATS = np.dtype(np.float32), np.dtype(np.float16), jnp.dtype(jnp.bfloat16)


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of an operator.

    Attributes:
      function: the operator, with its static arguments bound: from arrays to a tree of arrays.
      formula: the same in NumPy, from the same arguments to the same tree.
      draw: random arguments with the given number of rows, each a NumPy array or a tree of them. Shapes and dtypes are the
        same every time.
      rows: which of the arguments have one row per row of the results, as their first dimension. The others are parameters,
        which a caller may have as constants.
      collectives: the kinds of communication between devices that hold some of the rows each; none if rows are independent
        of each other.
      divisor: from the arguments to what the operator divides by, where a compiler that sees it as a constant might multiply
        by its reciprocal.
      cost: how many times longer per element the formula takes than for another operator.
    """

    function: Callable[..., Any]
    formula: Callable[..., Any]
    draw: Callable[[np.random.Generator, int], tuple]
    rows: tuple[int, ...] = (0,)
    collectives: tuple[str, ...] = ()
    divisor: Callable[..., Any] | None = None
    cost: int = 1

    def arguments(self, seed: int = 0, rows: int = ROWS) -> tuple:
        return self.draw(np.random.default_rng(seed), rows)

    def shapes(self, rows: int) -> tuple:
        """The shapes and dtypes of the arguments, with the given number of rows."""

        def shape(index: int, x: np.ndarray) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((rows, *x.shape[1:]) if index in self.rows else x.shape, x.dtype)

        return tuple(jax.tree.map(functools.partial(shape, index), value) for index, value in enumerate(self.arguments()))

    def first(self, count: int, arguments: tuple) -> tuple:
        """The arguments, with `count` of their rows."""
        return tuple(value[:count] if index in self.rows else value for index, value in enumerate(arguments))

    def rows_of(self, elements: int) -> int:
        """How many rows have about this many elements, in the first argument or in the results; fewer if they cost more."""
        arguments = self.arguments()
        leaves = jax.tree.leaves((arguments[0], self.formula(*arguments)))
        return max(1, elements // self.cost // max(math.prod(leaf.shape) for leaf in leaves)) * ROWS


def on_first_floats(function: Callable[[Any], Any], arguments: tuple) -> tuple:
    """The arguments, with the first float array among them changed, as a caller may change it."""
    for index, value in enumerate(arguments):
        if isinstance(value, jax.Array | np.ndarray | np.generic) and jnp.issubdtype(value.dtype, jnp.floating):
            return *arguments[:index], function(value), *arguments[index + 1 :]
    return arguments
