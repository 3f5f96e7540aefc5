"""What a contestant is, and what the modules in `contestants` share."""

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
    """What is timed, and what it must return.

    Attributes:
      run: returns when the result is there.
      expected: the result.
      tolerance: the largest absolute error, per element; None demands equality, and the same type.
      fetch: brings the result to NumPy, which is not timed.
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
            right = result == self.expected
        else:
            right = abs(result.astype(np.float64) - self.expected) <= self.tolerance
        if not right.all():
            raise Wrong(f"wrong result: {(~right).sum():,} of {right.size:,} elements")


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A row of the table.

    Attributes:
      name: the name in the row.
      timed: what exactly is timed.
      make: prepares everything that is not timed. Raises `Unavailable`.
      package: the distribution whose version counts; None for this repository.
    """

    name: str
    timed: str
    make: Callable[[Problem], Call]
    package: str | None = None


def require(module: str) -> ModuleType:
    """Imports a peer."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0]:
            raise Unavailable("not installed") from error
        raise


def jitted(function: Callable[..., jax.Array], *operands: Any, layers: int = 1) -> Callable[[], jax.Array]:
    """A call of the jitted function with its own copies of the operands on the device, one for each of the layers in turn.

    With a shared copy, a contestant would find in the cache what the previous one left there.
    """
    compiled = jax.jit(function)
    copies = [jax.tree.map(jnp.array, operands) for _ in range(layers)]
    return in_turn([lambda operands=operands: compiled(*operands).block_until_ready() for operands in copies])


def in_turn(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """The calls one at a time, over and over."""
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
