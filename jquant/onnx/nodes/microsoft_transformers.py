"""onnxruntime's attention operators, as its CPU provider computes them."""

import jax
import jax.numpy as jnp

from jquant.errors import ModelError
from jquant.onnx.graphs.graph import MICROSOFT
from jquant.onnx.nodes.attention import rotate
from jquant.onnx.running.registry import converter


@converter("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(
    input,
    position_ids,
    cos_cache,
    sin_cache,
    *,
    interleaved=0,
    is_packed_batching=0,
    num_heads=0,
    rotary_embedding_dim=0,
    scale=1.0,
):
    """For (batch, heads, length, size) or (batch, length, heads * size). A single position is that of the first token.

    As in onnxruntime, `is_packed_batching` and `scale` change nothing.
    """
    size = rotary_embedding_dim or 2 * cos_cache.shape[1]
    if input.ndim == 4:
        x = input.transpose(0, 2, 1, 3)
    else:
        x = input.reshape(*input.shape[:2], num_heads or -1, -1 if num_heads else size)
    positions = position_ids if position_ids.ndim == 2 else position_ids + jnp.arange(x.shape[1])[None]
    rotated = rotate(x, cos_cache[positions], sin_cache[positions], interleaved, size)
    return rotated.transpose(0, 2, 1, 3) if input.ndim == 4 else rotated.reshape(input.shape)


@converter("Attention", domain=MICROSOFT)
def attention(
    input,
    weights,
    bias=None,
    mask_index=None,
    past=None,
    attention_bias=None,
    *,
    do_rotary=0,
    mask_filter_value=-10000.0,
    num_heads,
    past_present_share_buffer=0,
    qkv_hidden_sizes=None,
    rotary_embedding_dim=0,
    scale=0.0,
    unidirectional=0,
):
    """The projections to query, key and value, then attention. Also returns all keys and values: (2, batch, heads, ...)."""
    if do_rotary or past_present_share_buffer:
        raise ModelError("do_rotary and past_present_share_buffer are not supported")
    widths = qkv_hidden_sizes or [weights.shape[1] // 3] * 3
    projected = jnp.matmul(input, weights)
    projected = projected if bias is None else projected + bias
    parts = jnp.split(projected, [widths[0], widths[0] + widths[1]], 2)
    q, k, v = (_heads(each, num_heads) for each in parts)
    if past is not None:
        k, v = (jnp.concatenate(pair, 2) for pair in zip(past, (k, v), strict=True))
    mask = _mask(mask_index, q, k, mask_filter_value, unidirectional)
    result = _attend(q, k, v, mask, attention_bias, scale)
    return (result, jnp.stack([k, v])) if k.shape == v.shape else (result,)


@converter("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    query,
    key=None,
    value=None,
    bias=None,
    key_padding_mask=None,
    attention_bias=None,
    past_key=None,
    past_value=None,
    *,
    mask_filter_value=-10000.0,
    num_heads,
    scale=0.0,
    unidirectional=0,
):
    """Attention over separate query, key and value.

    They may be packed, (batch, length, heads, 2 or 3, size), or as earlier calls returned them, (batch, heads, length,
    size), in which case no bias is added. Also returns all keys and values.
    """
    parts = [each for each in (query, key, value) if each is not None]
    if parts[-1].ndim == 5:
        last = parts.pop()
        parts += [last[:, :, :, i].reshape(*last.shape[:2], -1) for i in range(last.shape[3])]
    biases = (None,) * 3 if bias is None else jnp.split(bias, [parts[0].shape[-1], 2 * parts[0].shape[-1]])
    q, k, v = (
        x if x.ndim == 4 else _heads(x if b is None else x + b, num_heads) for x, b in zip(parts, biases, strict=True)
    )
    if past_key is not None and past_value is not None:
        k, v = jnp.concatenate([past_key, k], 2), jnp.concatenate([past_value, v], 2)
    mask = _mask(key_padding_mask, q, k, mask_filter_value, unidirectional)
    return _attend(q, k, v, mask, attention_bias, scale), k, v


def _heads(x, num_heads):
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)


def _mask(mask, q, k, mask_filter_value, unidirectional):
    """The mask to add to the scores, (batch or 1, 1, queries or 1, keys).

    Args:
      mask: None; or 1 for each position that counts and 0 for the others, (batch, keys) or (batch, queries, keys); or for
        each sequence of the batch, its end, (batch,), optionally followed by all starts, (2 * batch,).
      mask_filter_value: added to the scores of positions that do not count.
      unidirectional: whether later positions are excluded.
    """
    batch, _, queries, _ = q.shape
    keys = k.shape[2]
    addend = jnp.zeros((1, 1, 1, keys), q.dtype)
    if mask is not None:
        if mask.ndim == 1 and mask.shape[0] in (batch, 2 * batch):
            positions = jnp.arange(keys)
            counts = positions < mask[:batch, None]
            if mask.shape[0] == 2 * batch:
                counts = counts & (positions >= mask[batch:, None])
        elif mask.ndim in (2, 3):
            counts = mask > 0
        else:
            raise ModelError(f"a mask of shape {mask.shape} is not supported")
        counts = counts[:, None, None] if counts.ndim == 2 else counts[:, None]
        addend = jnp.where(counts, jnp.zeros((), q.dtype), jnp.asarray(mask_filter_value, q.dtype))
    if unidirectional:
        later = jnp.arange(keys)[None] > jnp.arange(queries)[:, None] + (keys - queries)
        addend = jnp.where(later, jnp.finfo(q.dtype).min, addend)
    return addend


def _attend(q, k, v, mask, bias, scale):
    scores = jnp.matmul(q, k.swapaxes(2, 3)) * jnp.asarray(scale or q.shape[-1] ** -0.5, q.dtype) + mask
    scores = scores if bias is None else scores + bias
    result = jnp.matmul(jax.nn.softmax(scores, -1), v)
    return result.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)
