"""onnxruntime's LSTM with integer products."""

import jax
import jax.numpy as jnp

from jquant.onnx.graphs.graph import MICROSOFT
from jquant.onnx.nodes.quantized_parameters import FEATURE_LEVEL
from jquant.onnx.nodes.recurrent import lstm_update
from jquant.onnx.nodes.recurrent_activations import LayerAttributes, activations_from_attributes
from jquant.onnx.nodes.recurrent_scan import Cell, States, run_directions
from jquant.onnx.running.registry import converter
from jquant.operators.dynamic_quantize_linear import dynamic_quantize_linear
from jquant.operators.matmul_integer import matmul_integer
from jquant.operators.pack_matrix import pack_matrix
from jquant.packed.matrix import PackedMatrix


@converter("DynamicQuantizeLSTM", domain=MICROSOFT)
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
    functions = activations_from_attributes(activations, attributes)
    unclipped = activations_from_attributes(activations, attributes.unclipped())
    if sequence_lens is not None:  # steps after the longest sequence must not widen the range
        x = jnp.where(jnp.arange(x.shape[0])[:, None, None] < jnp.max(sequence_lens), x, jnp.zeros_like(x))

    def layer(index: int, x: jax.Array) -> tuple[jax.Array, Cell]:
        bias = None if b is None else jnp.add(*jnp.split(b[index], 2))
        update = lstm_update(functions, unclipped, index, p, input_forget)
        input_weights, recurrent_weights = _packed(w, w_zero_point, index), _packed(r, r_zero_point, index)

        def cell(gates: jax.Array, states: States) -> States:
            gates = gates + _quantized_product(states[0], recurrent_weights, r_scale[index])
            return update(gates if bias is None else gates + bias, states[1])

        return _quantized_product(x, input_weights, w_scale[index]), cell

    return run_directions(layer, x, jnp.swapaxes(r, 1, 2), sequence_lens, (initial_h, initial_c), attributes.direction, 0)


def _packed(matrices: jax.Array, zero_points: jax.Array | None, index: int) -> PackedMatrix:
    return pack_matrix(matrices[index], None if zero_points is None else zero_points[index])


def _quantized_product(a: jax.Array, b: PackedMatrix, b_scale: jax.Array) -> jax.Array:
    a, a_scale, a_zero_point = dynamic_quantize_linear(a)
    product = matmul_integer(a.reshape(-1, a.shape[-1]), b, a_zero_point, feature_level=FEATURE_LEVEL)
    return (product.astype(jnp.float32) * (a_scale * b_scale)).reshape(*a.shape[:-1], -1)
