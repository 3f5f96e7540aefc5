"""RNN, GRU and LSTM."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jquant.onnx.nodes.recurrent_activations import (
    Activation,
    LayerAttributes,
    activations_from_attributes,
    select_direction,
)
from jquant.onnx.nodes.recurrent_scan import Cell, States, run_directions
from jquant.onnx.running.registry import converter


@converter("RNN", since=7)
def rnn(
    x,
    w,
    r,
    b=None,
    sequence_lens=None,
    initial_h=None,
    *,
    activations=("Tanh", "Tanh"),
    attributes: LayerAttributes,
    layout=0,
):
    """Returns the states of all steps, and the last ones."""
    functions = activations_from_attributes(activations, attributes)

    def layer(index: int, x: jax.Array) -> tuple[jax.Array, Cell]:
        (activation,) = select_direction(functions, index, 1)

        def cell(gates: jax.Array, states: States) -> States:
            return (activation(gates + jnp.matmul(states[0], r[index].T)),)

        return _input_gates(x, w, b, index), cell

    return run_directions(layer, x, r, sequence_lens, (initial_h,), attributes.direction, layout)


@converter("GRU", since=7)
def gru(
    x,
    w,
    r,
    b=None,
    sequence_lens=None,
    initial_h=None,
    *,
    activations=("Sigmoid", "Tanh") * 2,
    attributes: LayerAttributes,
    layout=0,
    linear_before_reset,
):
    """Returns the states of all steps, and the last ones. The gates are: update, reset, hidden."""
    functions = activations_from_attributes(activations, attributes)

    def layer(index: int, x: jax.Array) -> tuple[jax.Array, Cell]:
        f, g = select_direction(functions, index, 2)
        recurrent_z_r, recurrent_h = jnp.split(r[index].T, [2 * r.shape[2]], 1)
        recurrent_bias_h = 0 if b is None else b[index, 5 * r.shape[2] :]
        x = jnp.matmul(x, w[index].T)
        if b is not None:
            x = x + (b[index, : 3 * r.shape[2]] + b[index, 3 * r.shape[2] :].at[2 * r.shape[2] :].set(0))

        def cell(gates: jax.Array, states: States) -> States:
            (h,) = states
            z_r, hidden = jnp.split(gates, [2 * h.shape[1]], 1)
            z, reset = jnp.split(f(z_r + jnp.matmul(h, recurrent_z_r)), 2, 1)
            if linear_before_reset:
                hidden = g(hidden + reset * (jnp.matmul(h, recurrent_h) + recurrent_bias_h))
            else:
                hidden = g(hidden + jnp.matmul(reset * h, recurrent_h) + recurrent_bias_h)
            return ((1 - z) * hidden + z * h,)

        return x, cell

    return run_directions(layer, x, r, sequence_lens, (initial_h,), attributes.direction, layout)


@converter("LSTM", since=7)
def lstm(
    x,
    w,
    r,
    b=None,
    sequence_lens=None,
    initial_h=None,
    initial_c=None,
    p=None,
    *,
    activations=("Sigmoid", "Tanh", "Tanh") * 2,
    attributes: LayerAttributes,
    input_forget,
    layout=0,
):
    """Returns the states of all steps, the last ones, and the last cells. The gates are: input, output, forget, cell."""
    functions = activations_from_attributes(activations, attributes)
    unclipped = activations_from_attributes(activations, attributes.unclipped())

    def layer(index: int, x: jax.Array) -> tuple[jax.Array, Cell]:
        def cell(gates: jax.Array, states: States) -> States:
            return update(gates + jnp.matmul(states[0], r[index].T), states[1])

        update = lstm_update(functions, unclipped, index, p, input_forget)
        return _input_gates(x, w, b, index), cell

    return run_directions(layer, x, r, sequence_lens, (initial_h, initial_c), attributes.direction, layout)


def _input_gates(x: jax.Array, w: jax.Array, b: jax.Array | None, index: int) -> jax.Array:
    """What the inputs of all steps contribute to the gates, computed at once, with both biases added."""
    product = jnp.matmul(x, w[index].T)
    return product if b is None else product + jnp.add(*jnp.split(b[index], 2))


def lstm_update(
    functions: list[Activation], unclipped: list[Activation], index: int, p: jax.Array | None, input_forget: int
) -> Callable[[jax.Array, jax.Array], States]:
    """The function that computes the new state and cells of an LSTM from its gates, before activation, and its cells.

    Args:
      functions: the activations, with operands bounded by the attribute `clip`.
      unclipped: the same activations without bounds, of which that of the cells is used.
      index: that of the direction.
    """
    f, g, _ = select_direction(functions, index, 3)
    h = select_direction(unclipped, index, 3)[2]
    peepholes = (None, None, None) if p is None else jnp.split(p[index], 3)

    def update(gates: jax.Array, c: jax.Array) -> States:
        def gate(x: jax.Array, peephole: jax.Array | None, cells: jax.Array) -> jax.Array:
            return f(x if peephole is None else x + peephole * cells)

        i, o, forget, new = jnp.split(gates, 4, 1)
        peephole_i, peephole_o, peephole_f = peepholes
        i = gate(i, peephole_i, c)
        forget = 1 - i if input_forget else gate(forget, peephole_f, c)
        c = forget * c + i * g(new)
        return gate(o, peephole_o, c) * h(c), c

    return update
