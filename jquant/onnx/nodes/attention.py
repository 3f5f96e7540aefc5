"""RotaryEmbedding, CausalConvWithState and FlexAttention. ONNX's Attention is expanded to its function body instead."""

import jax
import jax.numpy as jnp
import onnx

from jquant.onnx.graphs.values import jax_dtype
from jquant.onnx.running.registry import converter


@converter("RotaryEmbedding", since=23)
def rotary_embedding(x, cos_cache, sin_cache, position_ids=None, *, interleaved, num_heads=0, rotary_embedding_dim):
    """For (batch, heads, length, size) or (batch, length, heads * size)."""
    heads = x.reshape(*x.shape[:2], num_heads, -1) if x.ndim == 3 else x.transpose(0, 2, 1, 3)
    if position_ids is not None:
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    rotated = rotate(heads, cos_cache, sin_cache, interleaved, rotary_embedding_dim or heads.shape[-1])
    return rotated.reshape(x.shape) if x.ndim == 3 else rotated.transpose(0, 2, 1, 3)


def rotate(x, cos, sin, interleaved, size):
    """Rotates pairs among the first `size` elements of each head.

    Args:
      x: (batch, length, heads, ...).
      cos, sin: those of the angles, (batch, length, ...), the same for all heads.
    """
    cos, sin = (each[..., None, : size // 2] for each in (cos, sin))
    pairs, rest = x[..., :size], x[..., size:]
    real, imaginary = (pairs[..., ::2], pairs[..., 1::2]) if interleaved else jnp.split(pairs, 2, -1)
    rotated = [cos * real - sin * imaginary, sin * real + cos * imaginary]
    if interleaved:
        rotated = [jnp.stack(rotated, -1).reshape(pairs.shape)]
    return jnp.concatenate([*rotated, rest], -1)


@converter("CausalConvWithState", since=27)
def causal_convolution(input, weight, bias=None, past_state=None, *, activation):
    """A depthwise convolution, padded at the front with the end of the previous input."""
    length = weight.shape[2] - 1
    if past_state is None:
        past_state = jnp.zeros((*input.shape[:2], length), input.dtype)
    padded = jnp.concatenate([past_state.astype(input.dtype), input], 2)
    y = jax.lax.conv_general_dilated(padded, weight, (1,), [(0, 0)], feature_group_count=input.shape[1])
    y = y if bias is None else y + bias[:, None]
    if activation in ("silu", "swish"):
        y = jax.nn.silu(y)
    return y, padded[:, :, padded.shape[2] - length :]


@converter("FlexAttention", domain="ai.onnx.preview", since=1)
def flex_attention(q, k, v, *, prob_mod=None, scale=None, score_mod=None, softmax_precision=None):
    """Attention in which subgraphs modify the scores and the probabilities, both float32 by default."""
    k, v = (jnp.repeat(each, q.shape[1] // each.shape[1], 1) for each in (k, v))
    root = jnp.asarray((q.shape[-1] ** -0.5 if scale is None else scale) ** 0.5, q.dtype)
    precision = onnx.helper.tensor_dtype_to_np_dtype(softmax_precision or onnx.TensorProto.FLOAT)
    scores = jnp.matmul(q * root, (k * root).swapaxes(2, 3)).astype(jax_dtype(precision, "the softmax"))
    scores = scores if score_mod is None else score_mod(scores)[0]
    probabilities = jax.nn.softmax(scores, -1)
    probabilities = probabilities if prob_mod is None else prob_mod(probabilities)[0]
    return jnp.matmul(probabilities.astype(v.dtype), v)
