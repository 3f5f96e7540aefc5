"""What a case is, how its results are compared, and what its arguments are drawn from."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import samples

ROWS, CHANNELS, DEPTH = 24, 5, 96


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of an operator.

    Attributes:
      function: the operator, its static arguments bound: from arrays to a tree of arrays.
      formula: the same in NumPy, from the same arguments to the same tree.
      draw: random arguments, each a NumPy array or a tree of them, of the same shapes and dtypes every time.
      rows: which of the arguments have a row for each row of the results: their first dimension.
      collectives: the kinds of what moves between devices that have some of the rows each: nothing, where rows are
        independent of each other.
    """

    function: Callable[..., Any]
    formula: Callable[..., Any]
    draw: Callable[[np.random.Generator], tuple]
    rows: tuple[int, ...] = (0,)
    collectives: tuple[str, ...] = ()

    def arguments(self, seed: int = 0) -> tuple:
        return self.draw(np.random.default_rng(seed))

    def first(self, count: int, arguments: tuple) -> tuple:
        """The arguments, with `count` of their rows."""
        return tuple(value[:count] if index in self.rows else value for index, value in enumerate(arguments))


def assert_equal(actual, expected, what: str = "") -> None:
    """Trees of the same structure, arrays of the same dtype, shape and values, zeros of the same sign."""

    def compare(actual, expected):
        actual, expected = np.asarray(actual), np.asarray(expected)
        if actual.dtype == expected.dtype == jax.numpy.bfloat16:  # NumPy does not know that its NaN are equal
            actual, expected = actual.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_array_equal(actual, expected, what, strict=True)
        if np.issubdtype(expected.dtype, np.floating):
            signs = (np.signbit(np.nan_to_num(x)) for x in (actual, expected))
            np.testing.assert_array_equal(*signs, f"signs: {what}")

    jax.tree.map(compare, actual, expected)


def scales(rng, *shape):
    return rng.uniform(1e-3, 1e-1, shape).astype(np.float32)


def floats(rng, step):
    """Rows of ties of `step` and their neighbours, then of any magnitude, infinities and NaN among them."""
    half = ROWS // 2 * CHANNELS
    values = samples.near_ties(rng, half, step, -140, 270), samples.wide_floats(rng, ROWS * CHANNELS - half)
    return np.concatenate(values).reshape(ROWS, CHANNELS)
