"""What is measured: a network, the data that calibrates it and other data, and how its outputs are judged."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jquant import transform

Run = Callable[[Any, jax.Array, Callable[[jax.Array], Any]], tuple[jax.Array, dict[str, Any]]]


class Moments(NamedTuple):
    """What the algorithms of others need of the input of a matrix, summed over rows: X^T X, and |X| with their number."""

    squares: jax.Array
    magnitudes: jax.Array
    rows: jax.Array

    @classmethod
    def of(cls, x: jax.Array) -> "Moments":
        x = x.reshape(-1, x.shape[-1])
        return cls(jnp.matmul(x.T, x, precision="highest"), jnp.abs(x).sum(0), jnp.float32(len(x)))


class Network(NamedTuple):
    """A network.

    Attributes:
      name: its name, and where its weights are from.
      notes: the texts, the numbers of tokens, and what stays float, in sentences.
      run: maps the parameters, a batch and a function of the inputs of matrices to the outputs, and to a dict of what that
        function returned, by the name of the matrix. Matrices that a scan stacks are stacked there as well.
      params: the parameters, float32.
      matrices: paths of the matrices that are quantized, among the parameters, by name.
      others: the rules of a recipe for everything else.
      calibration, evaluation: batches.
      figures: maps the outputs of the float network for `evaluation`, and those of another network, to figures by name.
    """

    name: str
    notes: tuple[str, ...]
    run: Run
    params: Any
    matrices: dict[str, tuple]
    others: tuple[tuple[str, transform.Scheme | None], ...]
    calibration: list[jax.Array]
    evaluation: list[jax.Array]
    figures: Callable[[Iterable[jax.Array], Iterable[jax.Array]], dict[str, str]]

    @property
    def apply(self) -> Callable[..., jax.Array]:
        return functools.partial(_outputs, self.run)

    def outputs(self, apply: Callable[..., jax.Array], params: Any) -> Iterator[jax.Array]:
        """What a function of parameters and a batch returns for the data that is measured."""
        compiled = jax.jit(apply)
        return (compiled(params, batch) for batch in self.evaluation)

    def recipe(self, scheme: transform.Scheme) -> transform.Recipe:
        """The scheme for all matrices; with blocks of 64 for those that blocks of 128 do not divide."""
        rules: list[tuple[str, transform.Scheme | None]] = [*self.others]
        for path in self.matrices.values():
            size = fitted(scheme.block_size, read(self.params, path).shape[-2])
            rules.append(("/".join(map(str, path)), dataclasses.replace(scheme, block_size=size)))
        return transform.Recipe(rules)

    def moments(self) -> dict[str, Moments]:
        """The moments of the inputs of all matrices, over the calibration data, in the float network."""
        observe = jax.jit(lambda params, batch: self.run(params, batch, Moments.of)[1])
        total = None
        for batch in self.calibration:
            moments = observe(self.params, batch)
            total = moments if total is None else jax.tree.map(jnp.add, total, moments)
        assert total is not None
        return jax.block_until_ready(total)


def _outputs(run: Run, params: Any, batch: jax.Array) -> jax.Array:
    return run(params, batch, lambda x: None)[0]


def fitted(size: int | None, rows: int) -> int | None:
    """A block size that divides the rows: 64 in place of 128, if need be."""
    return 64 if size == 128 and rows % 128 else size


def read(params: Any, path: tuple) -> jax.Array:
    for key in path:
        params = params[key]
    return params


def replaced(params: Any, path: tuple, value: Any) -> Any:
    """The parameters with another array at a path."""
    if not path:
        return value
    copy = params.copy()
    copy[path[0]] = replaced(params[path[0]], path[1:], value)
    return copy
