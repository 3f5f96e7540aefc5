"""Runs the cell of a recurrent layer over time, in one direction or in both, as one `lax.scan`."""

import functools
import itertools
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
      inputs: computes what the inputs of all steps contribute to the gates of a direction, (time, batch, gates), from the
        index of the direction and the inputs, (time, batch, ...), in the order in which it reads them.
      cell: computes new states from the activations and the parameters of a direction, from what the inputs of a step
        contribute, and from the old states.
      activations: of each direction.
      parameters: a tree of arrays, (directions, ...).
      hidden_size: the size of a state.
      is_exact: whether the products of the cell are of integers, which a batch of directions does not change.
    """

    inputs: Callable[[int, jax.Array], jax.Array]
    cell: Cell
    activations: Sequence[Activations]
    parameters: Any
    hidden_size: int
    is_exact: bool = False


def run_directions(
    layer: Layer,
    x: jax.Array,
    lengths: jax.Array | None,
    initial_states: Sequence[jax.Array | None],
    direction: str,
    layout: int = 0,
) -> tuple[jax.Array, ...]:
    """The states of all steps, (time, directions, batch, hidden size), then each of the last states.

    Args:
      x: the inputs of all steps, (time, batch, ...).
      lengths: of the sequences, (batch,); None if all have the full length.
      layout: 1 if the batch is the first dimension of the inputs, of the results and of the initial states.
    """
    reversals = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(direction)
    if reversals is None:
        raise ModelError(f"direction = {direction!r} is not supported")
    if len(layer.activations) != len(reversals):
        raise ModelError(f"its direction is {direction}, but its weights are for {len(layer.activations)} directions")
    x = jnp.swapaxes(x, 0, 1) if layout else x
    ends_first = lengths is None and all(reversals)  # the loop itself goes backwards
    turned = (lambda x: x) if ends_first else _turning(x.shape[0], lengths)
    gates = [layer.inputs(index, turned(x) if each else x) for index, each in enumerate(reversals)]
    empty = jnp.zeros((len(reversals), x.shape[1], layer.hidden_size), gates[0].dtype)
    states = tuple(empty if each is None else jnp.swapaxes(each, 0, 1) if layout else each for each in initial_states)
    outputs, states = _run_steps(_cell_of_all(layer, x.shape[1]), gates, states, lengths, ends_first)
    y = jnp.stack([turned(outputs[:, i]) if each else outputs[:, i] for i, each in enumerate(reversals)], 1)
    return (jnp.transpose(y, (2, 0, 1, 3)), *(jnp.swapaxes(each, 0, 1) for each in states)) if layout else (y, *states)


def of_direction(parameters: Any, index: int) -> Any:
    """A tree of arrays, (directions, ...), for one direction."""
    return jax.tree.map(lambda x: x[index], parameters)


def _turning(steps: int, lengths: jax.Array | None) -> Callable[[jax.Array], jax.Array]:
    """A function that brings arrays, (time, batch, size), into the order of a reversed direction, or back.

    In reverse, a sequence begins where it ends, and what is behind it stays there.
    """
    if lengths is None:
        return lambda x: jnp.flip(x, 0)
    numbers = jnp.arange(steps, dtype=jnp.int32)[:, None]
    order = jnp.where(numbers < lengths, lengths - 1 - numbers, numbers)[..., None]
    return lambda x: jnp.take_along_axis(x, order, 0)


def _cell_of_all(layer: Layer, batch: int) -> Callable[[Sequence[jax.Array], States], States]:
    """The cell of all directions, whose states are (directions, batch, hidden size).

    Directions with the same activations are a batch. But XLA adds up a product of floats of one row in another order in a
    batch, so that these are multiplied one by one.
    """
    activations, parameters = layer.activations, layer.parameters
    if len(activations) > 1 and len(set(activations)) == 1 and (layer.is_exact or batch != 1):
        at_once = jax.vmap(functools.partial(layer.cell, activations[0]))
        return lambda gates, states: at_once(parameters, jnp.stack(gates), states)
    of_each = [of_direction(parameters, index) for index in range(len(activations))]

    def one_by_one(gates: Sequence[jax.Array], states: States) -> States:
        operands = zip(activations, of_each, gates, zip(*states, strict=True), strict=True)
        return tuple(map(jnp.stack, zip(*itertools.starmap(layer.cell, operands), strict=True)))

    return one_by_one


def _run_steps(
    cell: Callable[[Sequence[jax.Array], States], States],
    gates: Sequence[jax.Array],
    states: States,
    lengths: jax.Array | None,
    reverse: bool,
) -> tuple[jax.Array, States]:
    """The outputs of all steps, and the last states. After a sequence ends, its states are 0."""
    if lengths is None:
        final, outputs = lax.scan(lambda states, gates: _scan_result(cell(gates, states)), states, gates, reverse=reverse)
        return outputs, final

    def step(states: States, numbered: tuple[jax.Array, Sequence[jax.Array]]):
        number, gates = numbered
        inside = (number < lengths)[:, None]
        hidden, *others = cell(gates, states)
        kept = (jnp.where(inside, new, old) for new, old in zip(others, states[1:], strict=True))
        return _scan_result((jnp.where(inside, hidden, jnp.zeros_like(hidden)), *kept))

    numbers = jnp.arange(gates[0].shape[0], dtype=jnp.int32)
    (_, *others), outputs = lax.scan(step, states, (numbers, gates))
    last = jnp.take_along_axis(outputs, jnp.maximum(lengths - 1, 0)[None, None, :, None], 0)[0]
    others = (jnp.where((lengths > 0)[:, None], each, jnp.zeros_like(each)) for each in others)
    return outputs, (last, *others)


def _scan_result(states: States) -> tuple[States, jax.Array]:
    """The result of a step of a scan: all states are carried to the next step, and the first is the output."""
    return states, states[0]
