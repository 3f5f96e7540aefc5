"""Runs the cell of a recurrent layer over time, in one direction or both, as a `lax.scan` per direction."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jquant.errors import ModelError

States = tuple[jax.Array, ...]
Cell = Callable[[jax.Array, States], States]


def run_directions(
    layer: Callable[[int, jax.Array], tuple[jax.Array, Cell]],
    x: jax.Array,
    r: jax.Array,
    lengths: jax.Array | None,
    initial_states: Sequence[jax.Array | None],
    direction: str,
    layout: int,
) -> tuple[jax.Array, ...]:
    """Runs one layer per direction, and stacks the results: the states of all steps, then each of the last states.

    Args:
      layer: called with the index of a direction and the inputs of all steps; returns what the inputs contribute to the
        gates, and a cell, which computes new states from the gates of a step and its old states.
      r: the recurrent weights, (directions, ..., hidden size).
      lengths: of the sequences, (batch,); None if all have the full length.
    """
    if layout:
        x = jnp.swapaxes(x, 0, 1)
    reversals = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(direction)
    if reversals is None:
        raise ModelError(f"direction = {direction!r} is not supported")
    if r.shape[0] != len(reversals):
        raise ModelError(f"its direction is {direction}, but its weights are for {r.shape[0]} directions")
    results = []
    for index, is_reversed in enumerate(reversals):
        gates, cell = layer(index, x)
        states = tuple(_initial_state(each, index, x, r, layout) for each in initial_states)
        results.append(_run_steps(cell, gates, states, lengths, is_reversed))
    states = (jnp.stack(each, 1 if layout else 0) for each in zip(*(final for _, final in results), strict=True))
    y = jnp.stack([outputs for outputs, _ in results], 1)
    return (jnp.transpose(y, (2, 0, 1, 3)) if layout else y, *states)


def _initial_state(state: jax.Array | None, index: int, x: jax.Array, r: jax.Array, layout: int) -> jax.Array:
    if state is None:
        return jnp.zeros((x.shape[1], r.shape[2]), x.dtype)
    return state[:, index] if layout else state[index]


def _run_steps(
    cell: Cell, gates: jax.Array, states: States, lengths: jax.Array | None, is_reversed: bool
) -> tuple[jax.Array, States]:
    """The states of all steps, and the last ones. After a sequence ends, its states are 0; in reverse, it begins there."""
    if lengths is None:
        final, outputs = lax.scan(
            lambda states, gates: _scan_result(cell(gates, states)), states, gates, reverse=is_reversed
        )
        return outputs, final

    def step(states: States, numbered: tuple[jax.Array, jax.Array]):
        number, gates = numbered
        inside = (number < lengths)[:, None]
        hidden, *others = cell(gates, states)
        kept = (jnp.where(inside, new, old) for new, old in zip(others, states[1:], strict=True))
        return _scan_result((jnp.where(inside, hidden, jnp.zeros_like(hidden)), *kept))

    numbers = jnp.arange(gates.shape[0], dtype=jnp.int32)
    order = jnp.where(numbers[:, None] < lengths, lengths - 1 - numbers[:, None], numbers[:, None])[..., None]
    gates = jnp.take_along_axis(gates, order, 0) if is_reversed else gates
    (_, *others), outputs = lax.scan(step, states, (numbers, gates))
    last = jnp.take_along_axis(outputs, jnp.maximum(lengths - 1, 0)[None, :, None], 0)[0]
    others = (jnp.where((lengths > 0)[:, None], each, jnp.zeros_like(each)) for each in others)
    return jnp.take_along_axis(outputs, order, 0) if is_reversed else outputs, (last, *others)


def _scan_result(states: States) -> tuple[States, jax.Array]:
    """The result of a step of a scan: all states are carried to the next step, and the first is the output."""
    return states, states[0]
