"""LSTM, GRU and RNN: one `lax.scan` per direction."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.errors import ModelError
from jquant.onnx.graph import MICROSOFT
from jquant.onnx.registry import converter
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear
from jquant.operators.matmul_integer import matmul_integer
from jquant.operators.pack_matrix import pack_matrix
from jquant.packed.matrix import PackedMatrix

_Activation = Callable[[jax.Array], jax.Array]
_States = tuple[jax.Array, ...]
_Cell = Callable[[jax.Array, _States], _States]

# For each activation: whether it has an alpha and a beta, their defaults (None: there is none), and its function.
_ACTIVATIONS: dict[str, tuple[dict[str, float | None], Callable[..., jax.Array]]] = {
    "relu": ({}, jax.nn.relu),
    "tanh": ({}, jnp.tanh),
    "sigmoid": ({}, jax.nn.sigmoid),
    "softsign": ({}, jax.nn.soft_sign),
    "softplus": ({}, jax.nn.softplus),
    "affine": ({"alpha": None, "beta": None}, lambda x, alpha, beta: alpha * x + beta),
    "leakyrelu": ({"alpha": 0.01}, lambda x, alpha: jnp.where(x < 0, alpha * x, x)),
    "thresholdedrelu": ({"alpha": 1.0}, lambda x, alpha: jnp.where(x > alpha, x, jnp.zeros_like(x))),
    "scaledtanh": ({"alpha": None, "beta": None}, lambda x, alpha, beta: alpha * jnp.tanh(beta * x)),
    "hardsigmoid": ({"alpha": 0.2, "beta": 0.5}, lambda x, alpha, beta: jnp.clip(alpha * x + beta, 0, 1)),
    "elu": ({"alpha": 1.0}, jax.nn.elu),
}


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
    activation_alpha=(),
    activation_beta=(),
    clip=None,
    direction,
    hidden_size=None,
    layout=0,
):
    """Returns the states of all steps, and the last ones."""
    functions = _activations(activations, activation_alpha, activation_beta, clip)

    def layer(place: int, x: jax.Array) -> tuple[jax.Array, _Cell]:
        (activation,) = _of_direction(functions, place, 1)

        def cell(gates: jax.Array, states: _States) -> _States:
            return (activation(gates + jnp.matmul(states[0], r[place].T)),)

        return _projected(x, w, b, place), cell

    return _layers(layer, x, r, sequence_lens, (initial_h,), direction, layout)


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
    activation_alpha=(),
    activation_beta=(),
    clip=None,
    direction,
    hidden_size=None,
    layout=0,
    linear_before_reset,
):
    """Returns the states of all steps, and the last ones. The gates are: update, reset, hidden."""
    functions = _activations(activations, activation_alpha, activation_beta, clip)

    def layer(place: int, x: jax.Array) -> tuple[jax.Array, _Cell]:
        f, g = _of_direction(functions, place, 2)
        recurrent_z_r, recurrent_h = jnp.split(r[place].T, [2 * r.shape[2]], 1)
        inside = 0 if b is None else b[place, 5 * r.shape[2] :]  # the recurrent bias of the hidden gate
        x = jnp.matmul(x, w[place].T)
        if b is not None:
            outside = b[place, : 3 * r.shape[2]] + b[place, 3 * r.shape[2] :].at[2 * r.shape[2] :].set(0)
            x = x + outside

        def cell(gates: jax.Array, states: _States) -> _States:
            (h,) = states
            z_r, hidden = jnp.split(gates, [2 * h.shape[1]], 1)
            z, reset = jnp.split(f(z_r + jnp.matmul(h, recurrent_z_r)), 2, 1)
            if linear_before_reset:
                hidden = g(hidden + reset * (jnp.matmul(h, recurrent_h) + inside))
            else:
                hidden = g(hidden + jnp.matmul(reset * h, recurrent_h) + inside)
            return ((1 - z) * hidden + z * h,)

        return x, cell

    return _layers(layer, x, r, sequence_lens, (initial_h,), direction, layout)


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
    activation_alpha=(),
    activation_beta=(),
    clip=None,
    direction,
    hidden_size=None,
    input_forget,
    layout=0,
):
    """Returns the states of all steps, the last ones, and the last cells. The gates are: input, output, forget, cell."""
    functions = _activations(activations, activation_alpha, activation_beta, clip)
    outputs = _activations(activations, activation_alpha, activation_beta, None)

    def layer(place: int, x: jax.Array) -> tuple[jax.Array, _Cell]:
        def cell(gates: jax.Array, states: _States) -> _States:
            return update(gates + jnp.matmul(states[0], r[place].T), states[1])

        update = _lstm_update(functions, outputs, place, p, input_forget)
        return _projected(x, w, b, place), cell

    return _layers(layer, x, r, sequence_lens, (initial_h, initial_c), direction, layout)


@converter("DynamicQuantizeLSTM", domain=MICROSOFT)
def quantized_lstm(
    x,
    w,
    r,
    b,
    sequence_lens,
    initial_h,
    initial_c,
    p,
    w_scale,
    w_zero_point,
    r_scale,
    r_zero_point,
    *,
    activations=("Sigmoid", "Tanh", "Tanh") * 2,
    activation_alpha=(),
    activation_beta=(),
    clip=None,
    direction="forward",
    hidden_size=None,
    input_forget=0,
):
    """LSTM with integer products. Their left operand is quantized over its range: all of `x` once, and in every step the
    states of the whole batch. With several threads, onnxruntime takes the range of each thread's part of the batch.

    The matrices are (inputs, gates), unlike those of LSTM. They have one scale per direction, or one per column.
    """
    functions = _activations(activations, activation_alpha, activation_beta, clip)
    outputs = _activations(activations, activation_alpha, activation_beta, None)
    if sequence_lens is not None:  # what comes after the longest sequence is in no range
        x = jnp.where(jnp.arange(x.shape[0])[:, None, None] < jnp.max(sequence_lens), x, jnp.zeros_like(x))

    def layer(place: int, x: jax.Array) -> tuple[jax.Array, _Cell]:
        bias = None if b is None else jnp.add(*jnp.split(b[place], 2))
        update = _lstm_update(functions, outputs, place, p, input_forget)
        inward, recurrent = _packed(w, w_zero_point, place), _packed(r, r_zero_point, place)

        def cell(gates: jax.Array, states: _States) -> _States:
            gates = gates + _quantized_product(states[0], recurrent, r_scale[place])
            return update(gates if bias is None else gates + bias, states[1])

        return _quantized_product(x, inward, w_scale[place]), cell

    return _layers(layer, x, jnp.swapaxes(r, 1, 2), sequence_lens, (initial_h, initial_c), direction, 0)


def _packed(matrices: jax.Array, zero_points: jax.Array | None, place: int) -> PackedMatrix:
    return pack_matrix(matrices[place], None if zero_points is None else zero_points[place])


def _quantized_product(a: jax.Array, b: PackedMatrix, b_scale: jax.Array) -> jax.Array:
    a, a_scale, a_zero_point = dynamic_quantize_linear(a)
    product = matmul_integer(a.reshape(-1, a.shape[-1]), b, a_zero_point, feature_level="EXTENDED")
    return (product.astype(jnp.float32) * (a_scale * b_scale)).reshape(*a.shape[:-1], -1)


def _lstm_update(functions: list[_Activation], outputs: list[_Activation], place: int, p: Any, input_forget: int):
    """The new state and cells of an LSTM, from the sums of its gates and from its cells.

    Args:
      functions, outputs: the activations with operands bounded by `clip`; and those without, of which that of the cells is
        used.
    """
    f, g, _ = _of_direction(functions, place, 3)
    h = _of_direction(outputs, place, 3)[2]
    peepholes = (None, None, None) if p is None else jnp.split(p[place], 3)

    def update(gates: jax.Array, c: jax.Array) -> _States:
        def gate(x: jax.Array, peephole: jax.Array | None, cells: jax.Array) -> jax.Array:
            return f(x if peephole is None else x + peephole * cells)

        i, o, forget, new = jnp.split(gates, 4, 1)
        peephole_i, peephole_o, peephole_f = peepholes
        i = gate(i, peephole_i, c)
        forget = 1 - i if input_forget else gate(forget, peephole_f, c)
        c = forget * c + i * g(new)
        return gate(o, peephole_o, c) * h(c), c

    return update


def _projected(x: jax.Array, w: jax.Array, b: jax.Array | None, place: int) -> jax.Array:
    """The products of the inputs of all steps at once, with both biases added."""
    product = jnp.matmul(x, w[place].T)
    return product if b is None else product + jnp.add(*jnp.split(b[place], 2))


def _layers(
    layer: Callable[[int, jax.Array], tuple[jax.Array, _Cell]],
    x: jax.Array,
    r: jax.Array,
    lengths: jax.Array | None,
    initial: Sequence[jax.Array | None],
    direction: str,
    layout: int,
) -> tuple[jax.Array, ...]:
    """Runs one layer per direction, and stacks the results: the states of all steps, and all last states.

    Args:
      layer: called with the index of a direction in the operands and all inputs; returns the inputs' gate sums and a cell.
    """
    if layout:
        x = jnp.swapaxes(x, 0, 1)
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(direction)
    if backwards is None:
        raise ModelError(f"direction = {direction!r} is not supported")
    if r.shape[0] != len(backwards):
        raise ModelError(f"its direction is {direction}, but its weights are for {r.shape[0]} directions")
    found = []
    for place, back in enumerate(backwards):
        gates, cell = layer(place, x)
        states = tuple(_initial(each, place, x, r, layout) for each in initial)
        found.append(_steps(cell, gates, states, lengths, back))
    states = (jnp.stack(each, 1 if layout else 0) for each in zip(*(final for _, final in found), strict=True))
    y = jnp.stack([outputs for outputs, _ in found], 1)
    return (jnp.transpose(y, (2, 0, 1, 3)) if layout else y, *states)


def _initial(given: jax.Array | None, place: int, x: jax.Array, r: jax.Array, layout: int) -> jax.Array:
    if given is None:
        return jnp.zeros((x.shape[1], r.shape[2]), x.dtype)
    return given[:, place] if layout else given[place]


def _steps(
    cell: _Cell, gates: jax.Array, states: _States, lengths: jax.Array | None, backwards: bool
) -> tuple[jax.Array, _States]:
    """The states of all steps, and the last ones. After a sequence ends, its states are 0; backwards, it begins there."""
    if lengths is None:
        final, outputs = lax.scan(lambda *given: _twice(cell(given[1], given[0])), states, gates, reverse=backwards)
        return outputs, final

    def step(states: _States, numbered: tuple[jax.Array, jax.Array]):
        number, gates = numbered
        inside = (number < lengths)[:, None]
        hidden, *others = cell(gates, states)
        kept = (jnp.where(inside, new, old) for new, old in zip(others, states[1:], strict=True))
        return _twice((jnp.where(inside, hidden, jnp.zeros_like(hidden)), *kept))

    numbers = jnp.arange(gates.shape[0], dtype=jnp.int32)
    order = jnp.where(numbers[:, None] < lengths, lengths - 1 - numbers[:, None], numbers[:, None])[..., None]
    gates = jnp.take_along_axis(gates, order, 0) if backwards else gates
    (_, *others), outputs = lax.scan(step, states, (numbers, gates))
    last = jnp.take_along_axis(outputs, jnp.maximum(lengths - 1, 0)[None, :, None], 0)[0]
    others = (jnp.where((lengths > 0)[:, None], each, jnp.zeros_like(each)) for each in others)
    return jnp.take_along_axis(outputs, order, 0) if backwards else outputs, (last, *others)


def _twice(states: _States) -> tuple[_States, jax.Array]:
    """The result of a step of a scan: all states go to the next step, the first one to the outputs."""
    return states, states[0]


def _activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], clip: float | None
) -> list[_Activation]:
    """The functions in order, each of which takes the next of `alphas` and `betas`, if it has any."""
    rest = {"alpha": list(alphas), "beta": list(betas)}
    found = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise ModelError(f"activation {name!r} is not supported")
        defaults, function = _ACTIVATIONS[name.lower()]
        options = {key: rest[key].pop(0) if rest[key] else default for key, default in defaults.items()}
        if None in options.values():
            raise ModelError(f"the activation {name} needs its alpha and beta")
        found.append(_activation(function, options, clip))
    return found


def _activation(function: Callable[..., jax.Array], options: dict[str, Any], clip: float | None) -> _Activation:
    def apply(x: jax.Array) -> jax.Array:
        x = x if clip is None else jnp.clip(x, -clip, clip)
        return function(x, **{key: np.asarray(value, x.dtype) for key, value in options.items()})

    return apply


def _of_direction(functions: list[_Activation], place: int, count: int) -> list[_Activation]:
    found = functions[place * count : (place + 1) * count]
    if len(found) != count:
        raise ModelError(f"it has {len(functions)} activations, but each direction needs {count}")
    return found
