"""RNN, GRU and LSTM."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jquant.onnx.nodes.recurrent_activations import LayerAttributes, activations_from_attributes, by_direction
from jquant.onnx.nodes.recurrent_scan import Activations, Layer, States, run_directions
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
    functions = by_direction(activations_from_attributes(activations, attributes), 1, len(r))
    layer = Layer(_inputs(w, sum_of_biases(b)), _rnn_cell, functions, r, r.shape[2])
    return run_directions(layer, x, sequence_lens, (initial_h,), attributes.direction, layout)


def _rnn_cell(activations: Activations, r: jax.Array, gates: jax.Array, states: States) -> States:
    (activation,) = activations
    return (activation(gates + jnp.matmul(states[0], r.T)),)


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
    functions = by_direction(activations_from_attributes(activations, attributes), 2, len(r))
    size = r.shape[2]
    bias, bias_h = None, None
    if b is not None:
        bias, bias_h = b[:, : 3 * size] + b[:, 3 * size :].at[:, 2 * size :].set(0), b[:, 5 * size :]
    z_r, h = jnp.split(jnp.swapaxes(r, 1, 2), [2 * size], 2)
    cell = functools.partial(_gru_cell, linear_before_reset)
    layer = Layer(_inputs(w, bias), cell, functions, (z_r, h, bias_h), size)
    return run_directions(layer, x, sequence_lens, (initial_h,), attributes.direction, layout)


def _gru_cell(
    linear_before_reset: int,
    activations: Activations,
    parameters: tuple[jax.Array, jax.Array, jax.Array | None],
    gates: jax.Array,
    states: States,
) -> States:
    f, g = activations
    recurrent_z_r, recurrent_h, bias_h = parameters
    (h,) = states
    bias_h = 0 if bias_h is None else bias_h
    z_r, hidden = jnp.split(gates, [2 * h.shape[1]], 1)
    z, reset = jnp.split(f(z_r + jnp.matmul(h, recurrent_z_r)), 2, 1)
    if linear_before_reset:
        hidden = g(hidden + reset * (jnp.matmul(h, recurrent_h) + bias_h))
    else:
        hidden = g(hidden + jnp.matmul(reset * h, recurrent_h) + bias_h)
    return ((1 - z) * hidden + z * h,)


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
    functions = lstm_activations(activations, attributes, len(r))
    cell = functools.partial(_lstm_cell, input_forget)
    layer = Layer(_inputs(w, sum_of_biases(b)), cell, functions, (r, p), r.shape[2])
    return run_directions(layer, x, sequence_lens, (initial_h, initial_c), attributes.direction, layout)


def _lstm_cell(
    input_forget: int,
    activations: Activations,
    parameters: tuple[jax.Array, jax.Array | None],
    gates: jax.Array,
    states: States,
) -> States:
    r, peepholes = parameters
    return lstm_update(activations, peepholes, input_forget, gates + jnp.matmul(states[0], r.T), states[1])


def _inputs(w: jax.Array, bias: jax.Array | None) -> Callable[[int, jax.Array], jax.Array]:
    """The function that computes what inputs contribute to the gates of a direction, with a bias added."""

    def contribution(index: int, x: jax.Array) -> jax.Array:
        product = jnp.matmul(x, w[index].T)
        return product if bias is None else product + bias[index]

    return contribution


def sum_of_biases(b: jax.Array | None) -> jax.Array | None:
    """The biases of the inputs' product and of the states' product, added up."""
    return None if b is None else jnp.add(*jnp.split(b, 2, 1))


def lstm_activations(names: Sequence[str], attributes: LayerAttributes, directions: int) -> list[Activations]:
    """The activations of each direction of an LSTM, of which the last, that of the cells, has no bounds."""
    clipped, unclipped = (
        by_direction(activations_from_attributes(names, each), 3, directions)
        for each in (attributes, attributes.unclipped())
    )
    return [(f, g, h) for (f, g, _), (_, _, h) in zip(clipped, unclipped, strict=True)]


def lstm_update(
    activations: Activations, peepholes: jax.Array | None, input_forget: int, gates: jax.Array, c: jax.Array
) -> States:
    """The new state and cells of an LSTM, from its gates, before activation, and its cells."""
    f, g, h = activations
    peephole_i, peephole_o, peephole_f = (None, None, None) if peepholes is None else jnp.split(peepholes, 3)

    def gate(x: jax.Array, peephole: jax.Array | None, cells: jax.Array) -> jax.Array:
        return f(x if peephole is None else x + peephole * cells)

    i, o, forget, new = jnp.split(gates, 4, 1)
    i = gate(i, peephole_i, c)
    forget = 1 - i if input_forget else gate(forget, peephole_f, c)
    c = forget * c + i * g(new)
    return gate(o, peephole_o, c) * h(c), c
