"""onnxruntime's quantized embedding look-up, with layer normalization of the sum of the embeddings."""

import functools

import jax.numpy as jnp

from jquant.arithmetic import exact
from jquant.formulas import affine
from jquant.onnx.graphs.graph import MICROSOFT
from jquant.onnx.nodes.quantized_parameters import flat
from jquant.onnx.running.registry import converter
from jquant.quantized_tensor import Quantized


@converter("QEmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    input_ids,
    segment_ids,
    word_embedding,
    position_embedding,
    segment_embedding,
    gamma,
    beta,
    mask,
    word_embedding_scale,
    position_embedding_scale,
    segment_embedding_scale,
    gamma_scale,
    beta_scale,
    word_embedding_zero_point,
    position_embedding_zero_point,
    segment_embedding_zero_point,
    gamma_zero_point,
    beta_zero_point,
    *,
    epsilon=1e-12,
):
    """Dequantizes the rows that are looked up, and normalizes their sum. Only the two means are added in JAX's order.

    Also returns the number of elements that are 1 in each row of the mask.
    """
    positions = jnp.arange(input_ids.shape[1])
    tables = [
        (word_embedding, input_ids, word_embedding_scale, word_embedding_zero_point),
        (position_embedding, positions, position_embedding_scale, position_embedding_zero_point),
    ]
    if segment_ids is not None:
        tables.append((segment_embedding, segment_ids, segment_embedding_scale, segment_embedding_zero_point))
    rows = (_dequantized(table[indices], *parameters) for table, indices, *parameters in tables)
    total = functools.reduce(exact.sum, rows)
    count = jnp.float32(total.shape[-1])
    centred = exact.difference(total, exact.quotient(jnp.sum(total, -1, keepdims=True), count))
    squares = exact.quotient(jnp.sum(exact.product(centred, centred), -1, keepdims=True), count)
    deviation = exact.seal(jnp.sqrt(exact.sum(squares, jnp.float32(epsilon))))
    scaled = exact.product(exact.quotient(centred, deviation), _dequantized(gamma, gamma_scale, gamma_zero_point))
    counts = jnp.zeros(input_ids.shape[0], jnp.int32) if mask is None else jnp.sum(mask == 1, 1, dtype=jnp.int32)
    return exact.sum(scaled, _dequantized(beta, beta_scale, beta_zero_point)), counts


def _dequantized(x, scale, zero_point):
    return affine.dequantize(Quantized(x, flat(scale), flat(zero_point)))
