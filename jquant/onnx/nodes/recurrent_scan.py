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
    outputs, states = _run_steps(layer, gates, states, lengths, ends_first)
    results = [_ended(*each, lengths) for each in zip(outputs, states, strict=True)]
    y = jnp.stack([turned(y) if each else y for (y, _), each in zip(results, reversals, strict=True)], 1)
    states = (jnp.stack(each, 1 if layout else 0) for each in zip(*(states for _, states in results), strict=True))
    return (jnp.transpose(y, (2, 0, 1, 3)) if layout else y, *states)


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


def _run_steps(
    layer: Layer, gates: Sequence[jax.Array], states: States, lengths: jax.Array | None, reverse: bool
) -> tuple[Sequence[jax.Array], Sequence[States]]:
    """For each direction, the outputs of all steps and the last states."""
    if not _are_a_batch(layer, states[0].shape[1]):
        parameters = [of_direction(layer.parameters, index) for index in range(len(gates))]
        cells = [functools.partial(layer.cell, *each) for each in zip(layer.activations, parameters, strict=True)]
        return _scan(cells, gates, [of_direction(states, index) for index in range(len(gates))], lengths, reverse)
    at_once = jax.vmap(functools.partial(layer.cell, layer.activations[0]))

    def cell(gates: Sequence[jax.Array], states: States) -> States:
        return at_once(layer.parameters, jnp.stack(gates), states)

    ((outputs,), (states,)) = _scan([cell], [gates], [states], lengths, reverse)
    indices = range(len(gates))
    return [outputs[:, index] for index in indices], [of_direction(states, index) for index in indices]


def _are_a_batch(layer: Layer, rows: int) -> bool:
    """Whether one cell computes all directions: if there are several with the same activations.

    XLA adds up a product of floats of one row in another order in a batch than alone.
    """
    activations = layer.activations
    return len(activations) > 1 and len(set(activations)) == 1 and (layer.is_exact or rows != 1)


def _scan(
    cells: Sequence[Callable[[Any, States], States]],
    gates: Sequence[Any],
    states: Sequence[States],
    lengths: jax.Array | None,
    reverse: bool,
) -> tuple[Sequence[jax.Array], Sequence[States]]:
    """For each cell, the outputs of all steps and the last states. Cells do not change behind the end of a sequence."""

    def step(states: Sequence[States], numbered: tuple[Any, Sequence[Any]]):
        number, gates = numbered
        new = [cell(*operands) for cell, *operands in zip(cells, gates, states, strict=True)]
        if lengths is not None:
            inside = (number < lengths)[:, None]
            new = [_within(inside, *each) for each in zip(new, states, strict=True)]
        return new, [hidden for hidden, *_ in new]

    steps = jax.tree.leaves(gates)[0].shape[0]
    numbers = None if lengths is None else jnp.arange(steps, dtype=jnp.int32)
    states, outputs = lax.scan(step, states, (numbers, gates), reverse=reverse)
    return outputs, states


def _within(inside: jax.Array, new: States, old: States) -> States:
    hidden, *others = new
    kept = (jnp.where(inside, each, before) for each, before in zip(others, old[1:], strict=True))
    return jnp.where(inside, hidden, jnp.zeros_like(hidden)), *kept


def _ended(outputs: jax.Array, states: States, lengths: jax.Array | None) -> tuple[jax.Array, States]:
    """The outputs of a direction, and its states where each sequence ends: 0 for an empty one."""
    if lengths is None:
        return outputs, states
    last = jnp.take_along_axis(outputs, jnp.maximum(lengths - 1, 0)[None, :, None], 0)[0]
    others = (jnp.where((lengths > 0)[:, None], each, jnp.zeros_like(each)) for each in states[1:])
    return outputs, (last, *others)
