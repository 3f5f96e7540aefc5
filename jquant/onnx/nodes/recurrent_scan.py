"""Runs the cell of a recurrent layer over time, in one direction or in both, as one `lax.scan`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.nodes.recurrent_activations import Activation

States = tuple[jax.Array, ...]
Activations = tuple[Activation, ...]
Cell = Callable[[Activations, Any, jax.Array, States], States]


class Layer(NamedTuple):
    """A recurrent layer in all of its directions.

    Attributes:
      cell: computes new states from the activations and the parameters of a direction, from what the inputs of a step
        contribute to the gates, and from the old states.
      activations: of each direction.
      parameters: a tree of arrays, (directions, ...).
      hidden_size: the size of a state.
      is_exact: whether the products of the cell are the same in a batch of directions: those of integers.
    """

    cell: Cell
    activations: Sequence[Activations]
    parameters: Any
    hidden_size: int
    is_exact: bool = False


def run_directions(
    layer: Layer,
    gates: Sequence[jax.Array],
    lengths: jax.Array | None,
    initial_states: Sequence[jax.Array | None],
    direction: str,
    layout: int,
) -> tuple[jax.Array, ...]:
    """The states of all steps, (time, directions, batch, hidden size), then each of the last states.

    Args:
      gates: what the inputs of all steps contribute to the gates, (time, batch, gates), for each direction.
      lengths: of the sequences, (batch,); None if all have the full length.
      layout: 1 if the batch is the first dimension of the results and of the initial states.
    """
    reversals = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(direction)
    if reversals is None:
        raise ModelError(f"direction = {direction!r} is not supported")
    if len(layer.activations) != len(reversals):
        raise ModelError(f"its direction is {direction}, but its weights are for {len(layer.activations)} directions")
    empty = jnp.zeros((len(reversals), gates[0].shape[1], layer.hidden_size), gates[0].dtype)
    states = tuple(empty if each is None else jnp.swapaxes(each, 0, 1) if layout else each for each in initial_states)
    cell = _cell_of_all(layer, gates[0].shape[1])
    y, states = _run_steps(cell, gates, states, lengths, reversals)
    return jnp.transpose(y, (2, 0, 1, 3)) if layout else y, *(jnp.swapaxes(x, 0, 1) if layout else x for x in states)


def _cell_of_all(layer: Layer, batch: int) -> Callable[[Sequence[jax.Array], States], States]:
    """The cell of all directions, whose states are (directions, batch, hidden size).

    Directions are a batch if they have the same activations. XLA multiplies a batch of floats with one row each in another
    order than each for itself, so that one row is multiplied by each direction.
    """
    cell, activations, parameters, *_ = layer
    if len(activations) > 1 and len(set(activations)) == 1 and (layer.is_exact or batch != 1):
        at_once = jax.vmap(functools.partial(cell, activations[0]))
        return lambda gates, states: at_once(parameters, jnp.stack(gates), states)
    of_each = [jax.tree.map(lambda x: x[index], parameters) for index in range(len(activations))]

    def one_by_one(gates: Sequence[jax.Array], states: States) -> States:
        each = zip(activations, of_each, gates, zip(*states, strict=True), strict=True)
        return tuple(map(jnp.stack, zip(*(cell(*operands) for operands in each), strict=True)))

    return one_by_one


def _run_steps(
    cell: Callable[[Sequence[jax.Array], States], States],
    gates: Sequence[jax.Array],
    states: States,
    lengths: jax.Array | None,
    reversals: Sequence[bool],
) -> tuple[jax.Array, States]:
    """The states of all steps, and the last ones. After a sequence ends, its states are 0; in reverse, it begins there."""
    if lengths is None:
        return _run_full_steps(cell, gates, states, reversals)
    steps = gates[0].shape[0]

    def step(states: States, numbered: tuple[jax.Array, Sequence[jax.Array]]):
        number, gates = numbered
        inside = (number < lengths)[:, None]
        hidden, *others = cell(gates, states)
        kept = (jnp.where(inside, new, old) for new, old in zip(others, states[1:], strict=True))
        return _scan_result((jnp.where(inside, hidden, jnp.zeros_like(hidden)), *kept))

    numbers = jnp.arange(steps, dtype=jnp.int32)
    order = jnp.where(numbers[:, None] < lengths, lengths - 1 - numbers[:, None], numbers[:, None])[..., None]

    def in_order(x: jax.Array, is_reversed: bool) -> jax.Array:
        return jnp.take_along_axis(x, order, 0) if is_reversed else x

    (_, *others), outputs = lax.scan(step, states, (numbers, list(map(in_order, gates, reversals))))
    last = jnp.take_along_axis(outputs, jnp.maximum(lengths - 1, 0)[None, None, :, None], 0)[0]
    others = (jnp.where((lengths > 0)[:, None], each, jnp.zeros_like(each)) for each in others)
    return _in_time(outputs, in_order, reversals), (last, *others)


def _run_full_steps(cell, gates: Sequence[jax.Array], states: States, reversals: Sequence[bool]) -> tuple[jax.Array, States]:
    """`_run_steps` of sequences that all have the full length."""
    is_reversed = all(reversals)

    def in_order(x: jax.Array, is_turned: bool) -> jax.Array:
        return jnp.flip(x, 0) if is_turned and not is_reversed else x

    def step(states: States, gates: Sequence[jax.Array]):
        return _scan_result(cell(gates, states))

    final, outputs = lax.scan(step, states, list(map(in_order, gates, reversals)), reverse=is_reversed)
    return _in_time(outputs, in_order, reversals), final


def _in_time(outputs: jax.Array, in_order: Callable[[jax.Array, bool], jax.Array], reversals: Sequence[bool]) -> jax.Array:
    """The outputs of all steps, (time, directions, ...), in the order of the inputs: `in_order` is its own inverse."""
    return jnp.stack([in_order(outputs[:, index], each) for index, each in enumerate(reversals)], 1)


def _scan_result(states: States) -> tuple[States, jax.Array]:
    """The result of a step of a scan: all states are carried to the next step, and the first is the output."""
    return states, states[0]
