"""Contestants: implementations of a product that are measured beside each other."""

import dataclasses
import importlib
import itertools
import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problem import Problem


class Unavailable(Exception):
    """The contestant cannot take part; the message says why."""


class Wrong(Exception):
    """The contestant's result is not the expected one."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that is timed, and the result that it must return.

    Attributes:
      run: makes the call, and returns when the result is there.
      expected: the right result.
      tolerance: the largest absolute error, per element; None requires equality, and the same type.
      fetch: converts the result to NumPy, which is not timed.
    """

    run: Callable[[], Any]
    expected: np.ndarray
    tolerance: np.ndarray | None = None
    fetch: Callable[[Any], np.ndarray] = np.asarray

    def check(self) -> None:
        """Raises `Wrong` if the result is wrong."""
        result = self.fetch(self.run())
        if result.shape != self.expected.shape:
            raise Wrong(f"wrong result: shape {result.shape}, not {self.expected.shape}")
        if self.tolerance is None:
            if result.dtype != self.expected.dtype:
                raise Wrong(f"wrong result: {result.dtype}, not {self.expected.dtype}")
            is_right = result == self.expected
        else:
            is_right = abs(result.astype(np.float64) - self.expected) <= self.tolerance
        if not is_right.all():
            raise Wrong(f"wrong result: {(~is_right).sum():,} of {is_right.size:,} elements")


@dataclasses.dataclass(frozen=True)
class Contestant:
    """An implementation of the product: a row of the table.

    Attributes:
      name: the name in the row.
      timed: what exactly is timed, in words.
      make: prepares everything that is not timed. Raises `Unavailable`.
      package: the distribution whose version is reported; None for this repository.
    """

    name: str
    timed: str
    make: Callable[[Problem], Call]
    package: str | None = None


def require(module: str) -> ModuleType:
    """Imports a module of another engine. Raises `Unavailable` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0]:
            raise Unavailable("not installed") from error
        raise


def jitted(function: Callable[..., jax.Array], *operands: Any, layers: int = 1) -> Callable[[], jax.Array]:
    """A call of the jitted function with copies of the operands on the device, one copy for each layer in turn.

    With copies shared between contestants, one would find in the cache what another left there.
    """
    compiled = jax.jit(function)
    copies = [jax.tree.map(jnp.array, operands) for _ in range(layers)]
    return in_turn([lambda operands=operands: compiled(*operands).block_until_ready() for operands in copies])


def in_turn(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """A call that makes one of the `calls` each time, in a cycle."""
    if len(calls) == 1:
        return calls[0]
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def dimension_numbers(problem: Problem) -> jax.lax.DotDimensionNumbers:
    """The dimension numbers of the product, for `lax.dot_general` and functions like it."""
    batch = tuple(range(problem.a.ndim - 2))
    return (((problem.a.ndim - 1,), (problem.b.ndim - 2,)), (batch, batch))


def cores() -> int:
    """The number of cores that this process may use, which is how many threads XLA takes."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
