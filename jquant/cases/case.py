"""A case: an operator, its reference formula, and random arguments for both."""

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
    """A call of an operator.

    Attributes:
      function: the operator with its static arguments bound, from arrays to a tree of arrays.
      formula: the reference in NumPy, from the same arguments to the same tree.
      draw: draws random arguments with this number of rows, each a NumPy array or a tree of them. Shapes and dtypes are
        always the same.
      rows: the indices of the arguments whose first dimension is that of the results. The others are parameters, which may
        be constants of a caller's program.
      collectives: the communication between devices that each hold some of the rows; none if rows are independent.
      divisor: from the arguments to the divisor, if a compiler that knows it as a constant might multiply by its reciprocal.
      cost: how many times longer the formula takes per element than those of most operators.
      elementwise: whether compiled programs are one loop, without a temporary of the size of the tensors. Operators that
        reduce, or compute a value for many elements at once, have several.
    """

    function: Callable[..., Any]
    formula: Callable[..., Any]
    draw: Callable[[np.random.Generator, int], tuple]
    rows: tuple[int, ...] = (0,)
    collectives: tuple[str, ...] = ()
    divisor: Callable[..., Any] | None = None
    cost: int = 1
    elementwise: bool = True

    def arguments(self, seed: int = 0, rows: int = ROWS) -> tuple:
        """Random arguments with this number of rows."""
        return self.draw(np.random.default_rng(seed), rows)

    def shapes(self, rows: int) -> tuple:
        """The shapes and dtypes of arguments with this number of rows."""

        def shape(index: int, x: np.ndarray) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((rows, *x.shape[1:]) if index in self.rows else x.shape, x.dtype)

        return tuple(jax.tree.map(functools.partial(shape, index), value) for index, value in enumerate(self.arguments()))

    def first(self, count: int, arguments: tuple) -> tuple:
        """The arguments, with only their first `count` rows."""
        return tuple(value[:count] if index in self.rows else value for index, value in enumerate(arguments))

    def rows_of(self, elements: int) -> int:
        """The number of rows with about this many elements, in the first argument or the results, divided by the cost."""
        arguments = self.arguments()
        leaves = jax.tree.leaves((arguments[0], self.formula(*arguments)))
        return max(1, elements // self.cost // max(math.prod(leaf.shape) for leaf in leaves)) * ROWS


def on_first_floats(function: Callable[[Any], Any], arguments: tuple) -> tuple:
    """The arguments, with a function applied to the first float array among them, as a caller's program may do."""
    for index, value in enumerate(arguments):
        if isinstance(value, jax.Array | np.ndarray | np.generic) and jnp.issubdtype(value.dtype, jnp.floating):
            return *arguments[:index], function(value), *arguments[index + 1 :]
    return arguments
