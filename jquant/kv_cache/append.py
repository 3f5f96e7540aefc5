"""Writes keys and values of new tokens into a cache."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.operands import any_float_operand
from jquant.arithmetic import exact, subbyte
from jquant.kv_cache.arguments import first_position, layer_index, layer_operand, position_operand
from jquant.kv_cache.cache import INT4, INTEGERS, KeyValueCache, cache_operand
from jquant.kv_cache.rows import quantized, updated
from jquant.lowering.formula import formula
from jquant.placement import explain_array_errors

_OPERATOR = "append"


@formula(_OPERATOR)
def _append(
    cache: KeyValueCache, keys: jax.Array, values: jax.Array, position: jax.Array, layer: jax.Array | None
) -> KeyValueCache:
    (keys, key_scale), (values, value_scale) = (_rows(jnp.swapaxes(x, 1, 2), cache.dtype) for x in (keys, values))
    rows = dataclasses.replace(cache, keys=keys, key_scale=key_scale, values=values, value_scale=value_scale)
    position, layer = first_position(position, cache, keys.shape[2]), layer_index(layer, cache)
    return jax.tree.map(functools.partial(updated, position=position, layer=layer), cache, rows)


def _rows(x: jax.Array, dtype: np.dtype) -> tuple[jax.Array, jax.Array | None]:
    """Rows along the last dimension as a cache stores them, and their scales."""
    if dtype not in INTEGERS:
        return exact.narrow(exact.widen(x), dtype), None
    values, scale, _ = quantized(x, dtype)
    stored = subbyte.packed(values.astype(jnp.uint8) & np.uint8(15), 4, -1) if dtype == INT4 else values
    return stored, jnp.squeeze(scale, -1)


@explain_array_errors
def append(
    cache: KeyValueCache,
    keys: ArrayLike,
    values: ArrayLike,
    position: ArrayLike,
    *,
    layer: ArrayLike | None = None,
) -> KeyValueCache:
    """Writes the keys and values of new tokens into the cache of a layer, from a position on.

    ``scale = max(abs(row)) / 127`` for INT8 and ``/ 7`` for INT4, ``integers = round(row / scale)``, for each row, which is
    the key or the value of a token in a head

    Each step is rounded once in float32, ties to even: a row is what ``dynamic_quantize_linear(x, axis=-1, symmetric=True)``
    makes of it or, for INT4, `scale_and_zero_point` and `quantize_linear`, but for the scale of a row of zeros. It is 0, and
    not 1, since `attend` multiplies the scales of values into weights that it rounds. A row whose scale would be below the
    normal float32 numbers counts as zeros. One with a NaN has the scale NaN, and one with an infinity an infinite scale. A
    cache of floats holds the elements, rounded to its type.

    Where XLA may reuse the memory of `cache`, it writes the new rows and nothing else: in a loop whose state the cache is,
    such as `jax.lax.scan` over layers or `jax.lax.while_loop` over tokens, or in a jitted function that gets it by
    ``donate_argnames``. Otherwise it copies the cache first.

    Tokens after `position` stay in the cache, and `attend` does not see them from earlier positions: to go back to an
    earlier token, or to give up a sequence, append there.

    Args:
      cache: a `KeyValueCache`, of all layers or of one.
      keys: float32, float16 or bfloat16, of shape (batch, tokens, heads, width), those of the cache.
      values: of the shape of `keys`.
      position: the position of the first token, which may be traced: an integer, or one for each sequence in shape
        (batch,). If tokens would lie outside of the cache, before its beginning or after its end, all of them move back into
        it; a number, or an array of NumPy, raises an error instead.
      layer: the index of the layer, an integer, which may be traced; None for the cache of one layer. One outside becomes
        the first or the last layer, or an error, likewise.

    Returns:
      The cache with the new tokens.

    Raises:
      DescriptorError: shapes that do not fit the cache, or a position or layer outside of it.
      DescriptorTypeError: keys or values that are not floats, a position or layer that is not an integer, something other
        than a cache, or one whose arrays were cast.

    Example:
      >>> import jax.numpy as jnp
      >>> from jquant import kv_cache
      >>> cache = kv_cache.init(layers=2, batch=1, heads=1, length=4, width=3)
      >>> key, value = jnp.array([[[[1.27, -0.5, 0.0]]]]), jnp.array([[[[0.0, 0.254, 0.01]]]])
      >>> cache = kv_cache.append(cache, key, value, 2, layer=1)
      >>> print(cache.keys[1, 0, 0])
      [[  0   0   0]
       [  0   0   0]
       [127 -50   0]
       [  0   0   0]]
      >>> print(cache.key_scale[1, 0, 0], cache.value_scale[1, 0, 0])
      [0.   0.   0.01 0.  ] [0.    0.    0.002 0.   ]
    """
    cache = cache_operand(_OPERATOR, cache)
    keys, values = any_float_operand(_OPERATOR, "keys", keys), any_float_operand(_OPERATOR, "values", values)
    _require_rows(keys.shape, values.shape, cache.shape[-4:])
    position = position_operand(_OPERATOR, position, cache, tuple(keys.shape)[1])
    return _append(cache, keys, values, position, layer_operand(_OPERATOR, layer, cache))


@once_for_each_signature
def _require_rows(keys: tuple[int, ...], values: tuple[int, ...], cache: tuple[int, ...]) -> None:
    batch, heads, _, width = cache
    wanted = f"it must be (batch, tokens, heads, width) = ({batch}, tokens, {heads}, {width})"
    fits = len(keys) == 4 and (keys[0], *keys[2:]) == (batch, heads, width)
    require(fits, f"{_OPERATOR}: keys has shape {keys}; for this cache {wanted}")
    require(values == keys, f"{_OPERATOR}: values has shape {values}; it must have that of keys, {keys}")
