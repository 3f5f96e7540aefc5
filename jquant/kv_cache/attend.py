"""Attention to a cache."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.operands import (
    FLOAT32,
    Operand,
    any_float_operand,
    boolean_operand,
    float_scalar,
    is_known,
    operand,
    require_scalar,
)
from jquant.arithmetic import exact
from jquant.arithmetic.broadcasting import aligned, broadcasts, to_rank
from jquant.formulas.softmax import softmax
from jquant.kernels.epilogue import Dequantize
from jquant.kernels.integer_dot import integer_dot
from jquant.kv_cache.arguments import (
    first_position,
    layer_index,
    layer_operand,
    position_operand,
    require_integers,
    within,
)
from jquant.kv_cache.cache import INT4, KeyValueCache, cache_operand
from jquant.kv_cache.rows import quantized
from jquant.lowering.formula import formula
from jquant.placement import explain_array_errors

_OPERATOR = "attend"
_INT8, _INT32_MAX = np.dtype(np.int8), 2**31 - 1


@formula(_OPERATOR)
def _attend(
    query: jax.Array,
    cache: KeyValueCache,
    position: jax.Array,
    layer: jax.Array | None,
    mask: jax.Array | None,
    window: jax.Array | None,
    scale: jax.Array,
) -> jax.Array:
    """The shapes are (batch, key heads, tokens, heads of a group, ...); products join tokens and group to rows."""
    if (index := layer_index(layer, cache)) is not None:
        cache = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, index, 0, keepdims=False), cache)
    position = first_position(position, cache, query.shape[1])
    batch, tokens, heads, width = query.shape
    _, key_heads, length, _ = cache.shape
    group = heads // key_heads

    def rows(x: jax.Array) -> jax.Array:
        return x.reshape(batch, key_heads, tokens * group, x.shape[-1])

    def tokens_and_group(x: jax.Array) -> jax.Array:
        return x.reshape(batch, key_heads, tokens, group, x.shape[-1])

    query_rows = rows(query.reshape(batch, tokens, key_heads, group, width).transpose(0, 2, 1, 3, 4))
    seen = _seen(position, tokens, length, mask, window, group)
    weights = softmax(tokens_and_group(_scores(query_rows, cache, scale)), seen)
    if cache.value_scale is not None:
        weights = exact.product(weights, cache.value_scale[:, :, None, None, :])
    # What is not seen may be NaN: its weight is 0, but not the product.
    output = tokens_and_group(_mixed(rows(jnp.where(seen, weights, np.float32(0))), cache, query.dtype))
    return output.transpose(0, 2, 1, 3, 4).reshape(batch, tokens, heads, width)


def _seen(
    position: jax.Array, tokens: int, length: int, mask: jax.Array | None, window: jax.Array | None, group: int
) -> jax.Array:
    """Which tokens of the cache each query sees: booleans that broadcast to the scores."""
    own = position.reshape(-1, 1, 1, 1, 1) + jnp.arange(tokens, dtype=np.int32).reshape(1, 1, -1, 1, 1)
    others = jnp.arange(length, dtype=np.int32).reshape(1, 1, 1, 1, -1)
    seen = others <= own
    if window is not None:
        seen &= others > own - within(window, _INT32_MAX).reshape((1,) * 5)
    if mask is None:
        return seen
    mask = to_rank(mask, 4)
    if mask.shape[1] == 1:
        return seen & jnp.expand_dims(mask, 3)
    by_group = mask.reshape(mask.shape[0], -1, group, *mask.shape[2:])
    return seen & jnp.swapaxes(by_group, 2, 3)


def _scores(rows: jax.Array, cache: KeyValueCache, scale: jax.Array) -> jax.Array:
    """``rows @ keys.T * scale``"""
    scale = to_rank(scale, rows.ndim)
    if cache.key_scale is None:
        return rows.astype(jnp.float32) @ jnp.swapaxes(cache.keys.astype(jnp.float32), -1, -2) * scale
    integers, row_scale, _ = quantized(rows, _INT8)
    integers = _evens_then_odds(integers) if cache.dtype == INT4 else integers
    dequantize = Dequantize(exact.product(row_scale, scale), cache.key_scale[..., None, :], None, FLOAT32)
    return integer_dot(integers, _integers(cache.keys, cache.dtype), (dequantize,), transpose_b=True)


def _mixed(weights: jax.Array, cache: KeyValueCache, dtype: np.dtype) -> jax.Array:
    """``weights @ values``, for weights that include the scales of the values."""
    if cache.value_scale is None:
        return (weights @ cache.values.astype(jnp.float32)).astype(dtype)
    integers, row_scale, _ = quantized(weights, _INT8)
    one = jnp.ones((1,) * weights.ndim, jnp.float32)
    output = integer_dot(integers, _integers(cache.values, cache.dtype), (Dequantize(row_scale, one, None, dtype),))
    return _interleaved(output, cache.width) if cache.dtype == INT4 else output


def _integers(stored: jax.Array, dtype: np.dtype) -> jax.Array:
    """The rows as int8. int4 rows have the elements of even index, then those of odd index: to interleave them is slow."""
    if dtype != INT4:
        return stored
    in_high_bits = jnp.concatenate([stored << np.uint8(4), stored], -1)
    return in_high_bits.astype(jnp.int8) >> np.int8(4)


def _evens_then_odds(x: jax.Array) -> jax.Array:
    """Rows in the order of `_integers`, with a 0 at the end if their width is odd."""
    odds = x[..., 1::2]
    missing = [(0, 0)] * (x.ndim - 1) + [(0, x.shape[-1] % 2)]
    return jnp.concatenate([x[..., ::2], jnp.pad(odds, missing)], -1)


def _interleaved(x: jax.Array, width: int) -> jax.Array:
    """The inverse of `_evens_then_odds`."""
    evens, odds = jnp.split(x, 2, -1)
    return jnp.stack([evens, odds], -1).reshape(x.shape)[..., :width]


@explain_array_errors
def attend(
    query: ArrayLike,
    cache: KeyValueCache,
    position: ArrayLike,
    *,
    layer: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    window: ArrayLike | None = None,
    scale: ArrayLike | None = None,
) -> jax.Array:
    """Causal attention of queries to the tokens in the cache of a layer, by products of integers.

    ``weights = softmax(query @ keys.T * scale)`` over the tokens that a query sees, and ``output = weights @ values``

    A query at a position sees the tokens of the cache from 0 to that position, its own included: `append` its key first.
    The conventions are those of `jax.nn.dot_product_attention`, grouped heads included: head h of the queries has head
    ``h // (heads / key_heads)`` of the cache.

    For a cache of int8 or int4, with `q(x)` and `s(x)` the int8 integers and the scale of each row, as in ``q, s, _ =
    dynamic_quantize_linear(x, axis=-1, symmetric=True, output_dtype="INT8")``, but 0 as the scale of zeros, each step is one
    of jquant's operators:

    - ``scores = matmul_integer_to_float(q(query), s(query) * scale, None, keys.T, key_scale)``: the scales of the keys are
      those of the columns;
    - ``e = exp(scores - max(scores))`` where the query sees, 0 elsewhere, and ``weights = e / sum(e)``, with each step but
      the exponential rounded once. The sum is taken in fixed point, the same in any order: each `e` in two digits of 20 bits
      for a length below 2**11, of 15 below 2**16 and of 12 beyond;
    - ``shares = weights * value_scale``: the scales of the values lie along the dimension that the next product sums. A
      value of zeros adds exactly nothing, since its scale is 0;
    - ``output = matmul_integer_to_float(q(shares), s(shares), None, values, 1.0)``.

    So all of it is exact but for the exponential, which is XLA's: programs for one platform agree, those for different ones
    may differ by its last bits. The queries of a group are rows of one product, and keys and values are not repeated. A
    cache of floats is multiplied in float32, in any order.

    A query that sees nothing gives zeros. In a cache of integers, what a query does not see does not matter, even if it is
    NaN. A query that sees a NaN or an infinity, in an element of a key or of a value, gives NaN in all elements of that
    head; so does a NaN or an infinity in the query itself. Shares below 1.5e-36 count as zeros.

    Args:
      query: float32, float16 or bfloat16, of shape (batch, tokens, heads, width); `heads` is a multiple of the cache's.
      cache: a `KeyValueCache`, of all layers or of one.
      position: the position of the first query, which may be traced: an integer, or one for each sequence in shape
        (batch,). The others follow it. If it is outside of the cache, it moves as in `append`.
      layer: the index of the layer, an integer, which may be traced; None for the cache of one layer. One outside is taken
        as in `append`.
      mask: booleans, of a shape that broadcasts to (batch, heads, tokens, length): where false, a query does not see the
        token, for instance because it is padding. None: it sees all tokens up to its own.
      window: a query sees only so many tokens, up to its own: an integer of at least 1, which may be traced; with a traced
        one below 1, it sees nothing. None: all.
      scale: what scores are multiplied by, a float32 scalar. None: ``1 / sqrt(width)``.

    Returns:
      An array of the shape and dtype of `query`.

    Raises:
      DescriptorError: shapes that do not fit the cache, heads that are no multiple of the cache's, or a position, layer or
        window outside of its range.
      DescriptorTypeError: a query that is not of floats, a mask that is not of booleans, a position, layer or window that is
        not an integer, something other than a cache, or one whose arrays were cast.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jquant import kv_cache
      >>> query, keys, values = jax.random.normal(jax.random.key(0), (3, 1, 16, 2, 64))
      >>> cache = kv_cache.append(kv_cache.init(1, 1, 2, 32, 64), keys, values, 0)
      >>> output = kv_cache.attend(query, cache, 0)
      >>> exact = jax.nn.dot_product_attention(query, keys, values, is_causal=True)
      >>> print(f"{10 * jnp.log10(jnp.var(exact) / jnp.var(output - exact)):.0f} dB")
      41 dB

    References:
      JAX, `jax.nn.dot_product_attention`.
    """
    cache = cache_operand(_OPERATOR, cache)
    query = any_float_operand(_OPERATOR, "query", query)
    _require_query(query.shape, cache.shape[-4:])
    batch, tokens, heads, width = tuple(query.shape)
    position = position_operand(_OPERATOR, position, cache, tokens)
    layer = layer_operand(_OPERATOR, layer, cache)
    if mask is not None:
        mask = boolean_operand(_OPERATOR, "mask", mask)
        _require_mask(mask.shape, (batch, heads, tokens, cache.shape[-2]))
    window = None if window is None else _window_operand(window)
    scale = np.float32(1 / math.sqrt(width)) if scale is None else float_scalar(_OPERATOR, "scale", scale)
    return _attend(query, cache, position, layer, mask, window, scale)


def _window_operand(window: ArrayLike) -> Operand:
    number = operand(_OPERATOR, "window", window, np.dtype(np.int32))
    require_integers(_OPERATOR, "window", number.dtype)
    number = require_scalar(_OPERATOR, "window", number)
    if not is_known(number):
        return number
    require(int(number) >= 1, f"{_OPERATOR}: window is {number}; it must be at least 1")
    return np.int32(min(int(number), _INT32_MAX))  # no cache is as long


@once_for_each_signature
def _require_query(query: tuple[int, ...], cache: tuple[int, ...]) -> None:
    batch, key_heads, _, width = cache
    wanted = f"it must be (batch, tokens, heads, width) = ({batch}, tokens, heads, {width})"
    fits = len(query) == 4 and (query[0], query[3]) == (batch, width)
    require(fits, f"{_OPERATOR}: query has shape {query}; for this cache {wanted}")
    wanted = f"it must have a multiple of the {key_heads} heads of the cache"
    require(query[2] % key_heads == 0, f"{_OPERATOR}: query has {query[2]} heads; {wanted}")


@once_for_each_signature
def _require_mask(mask: tuple[int, ...], scores: tuple[int, ...]) -> None:
    fits = len(mask) <= len(scores) and broadcasts(aligned(mask, len(scores)), scores)
    wanted = f"it must broadcast to (batch, heads, tokens, length) = {scores}"
    require(fits, f"{_OPERATOR}: mask has shape {mask}; {wanted}")
