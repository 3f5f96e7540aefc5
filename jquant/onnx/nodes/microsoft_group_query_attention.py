"""GroupQueryAttention, which onnxruntime-genai writes, as onnxruntime's CPU provider computes it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, max_dim

from jquant.errors import ModelError
from jquant.onnx.graphs.graph import MICROSOFT
from jquant.onnx.graphs.values import is_static
from jquant.onnx.nodes import microsoft_caches
from jquant.onnx.nodes.attention import rotate
from jquant.onnx.nodes.microsoft_caches import Span, Tokens
from jquant.onnx.running.registry import converter


@converter("GroupQueryAttention", domain=MICROSOFT, prefers_static=("total_sequence_length",))
def group_query_attention(
    query,
    key,
    value,
    past_key,
    past_value,
    seqlens_k,
    total_sequence_length,
    cos_cache=None,
    sin_cache=None,
    position_ids=None,
    attention_bias=None,
    head_sink=None,
    k_scale=None,
    v_scale=None,
    q_norm_weight=None,
    k_norm_weight=None,
    query_seqlens=None,
    *,
    causal=1,
    do_rotary=0,
    k_norm_epsilon=0.0,
    k_quant_type="NONE",
    kv_cache_bit_width=8,
    kv_num_heads,
    local_window_size=-1,
    num_heads,
    outputs,
    q_norm_epsilon=0.0,
    qk_norm_epsilon=1e-6,
    qk_output=0,
    rotary_interleaved=0,
    scale=0.0,
    sliding_window_cache=0,
    smooth_softmax=0,
    softcap=0.0,
    v_quant_type="NONE",
):
    """Attention of new tokens to those in a cache, and the cache with the new tokens.

    `seqlens_k` says where each sequence ends, less 1: the new tokens are its last ones, at most as many as `query` has;
    others at the end of `query` are padding. Where `total_sequence_length` is not known while tracing, the cache has to have
    room for all tokens. Shapes then are the same in each call, and so are they with an attention mask as long as the cache.
    If it has not, the output is NaN under `jax.jit`, and outside of it the call is an error.
    """
    _require(num_heads % kv_num_heads == 0, f"num_heads, {num_heads}, is no multiple of kv_num_heads, {kv_num_heads}")
    _require((key is None) == (value is None), "key and value must both be given, or both left out")
    _require((past_key is None) == (past_value is None), "past_key and past_value must both be given, or both left out")
    both_norms = (q_norm_weight is None) == (k_norm_weight is None)
    _require(both_norms, "q_norm_weight and k_norm_weight must both be given, or both left out")
    if key is None:
        q, k, v = jnp.split(_heads(query, num_heads + 2 * kv_num_heads), [num_heads, num_heads + kv_num_heads], 2)
    else:
        q, k, v = _heads(query, num_heads), _heads(key, kv_num_heads), _heads(value, kv_num_heads)
    _require(k.shape[1] == q.shape[1], f"key has {k.shape[1]} tokens; it must have those of query, {q.shape[1]}")
    if q_norm_weight is not None and k_norm_weight is not None:
        q = _normalized(q, q_norm_weight, q_norm_epsilon or qk_norm_epsilon)
        k = _normalized(k, k_norm_weight, k_norm_epsilon or qk_norm_epsilon)
    total = _total(total_sequence_length)
    may_lack_room = total is None and not sliding_window_cache
    fits = None if past_key is None or not may_lack_room else _fits(total_sequence_length, past_key.shape[2])
    span, own = _positions(seqlens_k, query_seqlens, q.shape[1])
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise ModelError("do_rotary needs cos_cache and sin_cache")
        at = _rotary_positions(position_ids, own, total)
        turned = functools.partial(
            rotate, cos=cos_cache[at], sin=sin_cache[at], interleaved=rotary_interleaved, size=2 * cos_cache.shape[1]
        )
        q, k = turned(q), turned(k)
    bits = kv_cache_bit_width or 8
    k, k_scale = _stored(k, k_scale, k_quant_type, bits)
    v, v_scale = _stored(v, v_scale, v_quant_type, bits)

    def tokens(past: jax.Array | None, rows: jax.Array) -> Tokens:
        if sliding_window_cache:
            return microsoft_caches.windowed(past, rows, span, local_window_size)
        return microsoft_caches.whole(past, rows, span, _length(past, total))

    keys, values = tokens(past_key, k), tokens(past_value, v)
    seen = _seen(keys.positions, own, span.end, local_window_size, causal)
    scores = _scores(q, _floats(keys.stored, k_scale, bits), k_scale, scale)
    scores = scores if softcap <= 0 else softcap * jnp.tanh(scores / np.float32(softcap))
    if attention_bias is not None:
        scores += _grouped(_at_positions(attention_bias, keys.positions), kv_num_heads)
    sink = _sink(head_sink, smooth_softmax, kv_num_heads)
    weights = _softmax(scores, seen, sink)
    output = _mixed(weights, _floats(values.stored, v_scale, bits), v_scale).astype(query.dtype)
    output = output if fits is None else jnp.where(fits, output, jnp.asarray(jnp.nan, output.dtype))
    results = output, keys.present, values.present
    if outputs < 4 or qk_output == 0:
        return results
    _require(total is not None and not sliding_window_cache, "output_qk needs a total_sequence_length that is known")
    products = jnp.where(seen, scores, 0) if qk_output == 1 else weights
    return *results, products[..., :total].reshape(q.shape[0], num_heads, q.shape[1], -1).astype(query.dtype)


def _require(condition, message: str) -> None:
    if not condition:
        raise ModelError(message)


def _heads(x: jax.Array, heads: int) -> jax.Array:
    """(batch, tokens, heads * width) as (batch, tokens, heads, width)."""
    return x.reshape(*x.shape[:2], heads, -1)


def _normalized(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """Each head divided by the root of the mean of its squares."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + epsilon)).astype(x.dtype) * weight


def _total(total_sequence_length):
    """The tokens of the longest sequence, a size; None if they are not known."""
    return total_sequence_length.reshape(-1)[0] if is_static(total_sequence_length) else None


def _fits(total_sequence_length, room) -> jax.Array | None:
    """Whether a cache has room for all tokens; None if it certainly has.

    Raises:
      ModelError: a cache that certainly has not.
    """
    total = total_sequence_length.reshape(-1)[0]
    if isinstance(total, Tracer):
        return total <= room
    if int(total) > room:
        raise ModelError(
            f"the cache has room for {room} tokens, and total_sequence_length is {int(total)}; a cache with room for all is "
            "needed, or jquant.onnx.load(..., constants=) with the total, with which the cache grows"
        )
    return None


def _length(past: jax.Array | None, total) -> Any:
    """The positions of the cache after the call."""
    if past is None:
        _require(total is not None, "without a cache, total_sequence_length must be known")
        return _size(total)
    return past.shape[2] if total is None else max_dim(past.shape[2], _size(total))


def _size(total):
    return total if jax.export.is_symbolic_dim(total) else int(total)


def _positions(seqlens_k: jax.Array, query_seqlens: jax.Array | None, tokens: int) -> tuple[Span, jax.Array]:
    """Where the new tokens of each sequence begin and end, and the position of each, (batch, tokens)."""
    end = seqlens_k.reshape(-1) + 1
    start = end - (jnp.minimum(end, tokens) if query_seqlens is None else query_seqlens)
    return Span(start, end), start[:, None] + jnp.arange(tokens, dtype=np.int32)


def _rotary_positions(position_ids: jax.Array | None, own: jax.Array, total) -> jax.Array:
    """In a first prompt, onnxruntime reads the first of the positions alone: the others follow it."""
    if position_ids is None:
        return own
    is_first_prompt = total is not None and _size(total) == own.shape[1]
    return position_ids[:1, :1] + jnp.arange(own.shape[1])[None] if is_first_prompt else position_ids


def _stored(rows: jax.Array, scale: jax.Array | None, quant_type: str, bits: int) -> tuple[jax.Array, jax.Array | None]:
    """New keys or values as the cache stores them, (batch, heads, tokens, width), and the scale; None for floats."""
    rows = rows.transpose(0, 2, 1, 3)
    if quant_type == "NONE":
        return rows, None
    if scale is None:
        raise ModelError(f"a cache with the scales {quant_type} needs k_scale and v_scale")
    _require(bits in (4, 8), f"a cache of {bits} bits is not supported")
    scale = scale.reshape(()) if scale.size == 1 else scale.reshape(rows.shape[1], 1, rows.shape[3])
    return microsoft_caches.quantized(rows, scale, bits), scale


def _floats(stored: jax.Array, scale: jax.Array | None, bits: int) -> jax.Array:
    return stored if scale is None else microsoft_caches.as_floats(stored, bits)


def _seen(positions: jax.Array, own: jax.Array, end: jax.Array, window: int, causal: int) -> jax.Array:
    """Which keys each query sees, (batch, 1, 1, tokens, keys)."""
    positions, own = positions[:, None], own[..., None]
    seen = positions <= own if causal else positions < end[:, None, None]
    if window > 0:
        seen &= positions > own - window
    return seen[:, None, None]


def _scores(q: jax.Array, keys: jax.Array, k_scale: jax.Array | None, scale: float) -> jax.Array:
    """(batch, heads of keys, heads of a group, tokens, keys), in float32."""
    batch, tokens, heads, width = q.shape
    key_heads = keys.shape[1]
    rows = q.transpose(0, 2, 1, 3).reshape(batch, key_heads, -1, width)
    rows = rows if k_scale is None else rows * k_scale
    products = jnp.einsum("bhqd,bhkd->bhqk", rows, keys, preferred_element_type=jnp.float32)
    return products.reshape(batch, key_heads, heads // key_heads, tokens, -1) * np.float32(scale or width**-0.5)


def _at_positions(bias: jax.Array, positions: jax.Array) -> jax.Array:
    """A bias for each position as one for each key."""
    if positions.shape[0] > 1 or positions.shape[1] != bias.shape[3]:
        return jnp.take_along_axis(bias, positions[:, None, None], 3, mode="clip")
    return bias


def _grouped(x: jax.Array, key_heads: int) -> jax.Array:
    """(batch, heads or 1, ...) as (batch, heads of keys or 1, heads of a group or 1, ...)."""
    return x[:, None] if x.shape[1] == 1 else x.reshape(x.shape[0], key_heads, -1, *x.shape[2:])


def _sink(head_sink: jax.Array | None, smooth_softmax: int, key_heads: int) -> jax.Array | None:
    """What the sum of the softmax has in addition: the exponential of this, for each head."""
    if head_sink is not None:
        return head_sink.astype(jnp.float32).reshape(1, key_heads, -1, 1, 1)
    return jnp.zeros((1,) * 5, jnp.float32) if smooth_softmax else None


def _softmax(scores: jax.Array, seen: jax.Array, sink: jax.Array | None) -> jax.Array:
    """Over the keys that a query sees; all zeros if it sees none. The others have no part in derivatives, either."""
    scores = jnp.where(seen, scores, -jnp.inf)
    highest = scores.max(-1, keepdims=True)
    highest = highest if sink is None else jnp.maximum(highest, sink)
    highest = jax.lax.stop_gradient(jnp.where(highest == -jnp.inf, 0, highest))
    exponentials = jnp.exp(scores - highest)
    total = exponentials.sum(-1, keepdims=True)
    total = total if sink is None else total + jnp.exp(sink - highest)
    return exponentials / jnp.where(total == 0, 1, total)


def _mixed(weights: jax.Array, values: jax.Array, v_scale: jax.Array | None) -> jax.Array:
    """(batch, tokens, heads * width), in float32."""
    batch, key_heads, group, tokens, keys = weights.shape
    rows = weights.reshape(batch, key_heads, -1, keys)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", rows, values, preferred_element_type=jnp.float32)
    mixed = mixed if v_scale is None else mixed * v_scale
    return mixed.reshape(batch, key_heads * group, tokens, -1).transpose(0, 2, 1, 3).reshape(batch, tokens, -1)
