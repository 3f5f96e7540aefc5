"""onnxruntime's LSTM with integer products."""

import functools

import jax
import jax.numpy as jnp

from jquant.onnx.graphs.graph import MICROSOFT
from jquant.onnx.nodes.quantized_parameters import FEATURE_LEVEL
from jquant.onnx.nodes.recurrent import lstm_activations, lstm_update, sum_of_biases
from jquant.onnx.nodes.recurrent_activations import LayerAttributes
from jquant.onnx.nodes.recurrent_scan import Activations, Layer, States, of_direction, run_directions
from jquant.onnx.running.registry import converter
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear
from jquant.operators.matmul_integer import matmul_integer
from jquant.operators.matmul_integer_to_float import matmul_integer_to_float
from jquant.operators.pack_matrix import pack_matrix
from jquant.packed.matrix import PackedMatrix


@converter("DynamicQuantizeLSTM", domain=MICROSOFT, packs={"w": "w_zero_point", "r": "r_zero_point"})
def dynamic_quantize_lstm(
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
    attributes: LayerAttributes,
    input_forget=0,
):
    """LSTM whose products are of dynamically quantized operands: all of `x` is quantized once, with one range, and in every
    step the states of the whole batch. With several threads, onnxruntime uses the range of each thread's part of the batch.

    The matrices are (inputs, gates), unlike those of LSTM. They have one scale per direction, or one per column.
    """
    if sequence_lens is not None:  # steps after the longest sequence must not widen the range
        x = jnp.where(jnp.arange(x.shape[0])[:, None, None] < jnp.max(sequence_lens), x, jnp.zeros_like(x))
    functions = lstm_activations(activations, attributes, r.shape[0])
    parameters = _packed(r, r_zero_point), r_scale, sum_of_biases(b), p
    values, x_scale, x_zero_point = dynamic_quantize_linear(x)
    weights = _packed(w, w_zero_point), w_scale

    def inputs(index: int, values: jax.Array) -> jax.Array:
        rows = values.reshape(-1, values.shape[-1])
        operands = rows, x_scale, x_zero_point, *of_direction(weights, index)
        return matmul_integer_to_float(*operands, feature_level=FEATURE_LEVEL).reshape(*values.shape[:2], -1)

    layer = Layer(inputs, functools.partial(_cell, input_forget), functions, parameters, r.shape[1], is_exact=True)
    return run_directions(layer, values, sequence_lens, (initial_h, initial_c), attributes.direction)


def _cell(
    input_forget: int,
    activations: Activations,
    parameters: tuple[PackedMatrix, jax.Array, jax.Array | None, jax.Array | None],
    gates: jax.Array,
    states: States,
) -> States:
    weights, scale, bias, peepholes = parameters
    gates = gates + _recurrent_gates(states[0], weights, scale)
    return lstm_update(activations, peepholes, input_forget, gates if bias is None else gates + bias, states[1])


def _packed(matrices: jax.Array | PackedMatrix, zero_points: jax.Array | None) -> PackedMatrix:
    """The matrices of all directions; packed ones have their zero points."""
    return matrices if isinstance(matrices, PackedMatrix) else jax.vmap(pack_matrix)(matrices, zero_points)


def _recurrent_gates(h: jax.Array, weights: PackedMatrix, scale: jax.Array) -> jax.Array:
    """The product by the states, which XLA scales where it adds it to the other gates."""
    values, h_scale, zero_point = dynamic_quantize_linear(h)
    product = matmul_integer(values, weights, zero_point, feature_level=FEATURE_LEVEL)
    return product.astype(jnp.float32) * (h_scale * scale)
