"""Arguments that `append` and `attend` share: where in the cache tokens are."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jquant.arguments.assertions import once_for_each_signature, require
from jquant.arguments.operands import Operand, is_known, operand
from jquant.errors import DescriptorTypeError, shown
from jquant.kv_cache.cache import KeyValueCache
from jquant.modes import data_type_name

_INT32 = np.dtype(np.int32)


def position_operand(operator: str, position: ArrayLike, cache: KeyValueCache, tokens: int) -> Operand:
    """The position of the first of the tokens: a scalar, or one for each sequence."""
    batch, length = cache.shape[-4], cache.shape[-2]
    position = operand(operator, "position", position, _INT32)
    require_integers(operator, "position", position.dtype)
    _require_position(operator, position.shape, batch, tokens, length)
    if is_known(position):
        fits = all(0 <= int(one) <= length - tokens for one in np.ravel(position))
        where = f"so that {tokens} tokens fit the cache, which has {length}"
        require(fits, f"{operator}: position is {shown(position.tolist())}; it must be from 0 to {length - tokens}, {where}")
    return _int32_if_known(position)


def layer_operand(operator: str, layer: ArrayLike | None, cache: KeyValueCache) -> Operand | None:
    """The index of a layer; None if the arrays of the cache have no dimension of layers."""
    layers = cache.shape[0] if cache.ndim == 5 else 0
    if layer is None:
        require(layers <= 1, f"{operator}: layer is None, but the cache has {layers} layers; it must be the index of one")
        return None if layers == 0 else np.int32(0)
    require(layers > 0, f"{operator}: layer must be None for a cache without a dimension of layers, {cache!r}")
    layer = operand(operator, "layer", layer, _INT32)
    require_integers(operator, "layer", layer.dtype)
    require(layer.shape == (), f"{operator}: layer has shape {layer.shape}; it must be a scalar")
    if is_known(layer):
        require(0 <= int(layer) < layers, f"{operator}: layer is {layer}; it must be from 0 to {layers - 1}")
    return _int32_if_known(layer)


def _int32_if_known(index: Operand) -> Operand:
    """A known integer that was checked as int32, so that it has one program in all types."""
    return index.astype(_INT32) if is_known(index) else index


def first_position(position: jax.Array, cache: KeyValueCache, tokens: int) -> jax.Array:
    """A position, int32, from which on so many tokens fit the cache: those that would lie outside move back into it."""
    return within(position, cache.shape[-2] - tokens)


def layer_index(layer: jax.Array | None, cache: KeyValueCache) -> jax.Array | None:
    """The index of a layer of the cache, int32: one outside becomes the first or the last layer."""
    return None if layer is None else within(layer, cache.shape[0] - 1)


def within(index: jax.Array, largest: int) -> jax.Array:
    """An integer of any type as int32 from 0 to `largest`, to which one outside moves; compared in its own type."""
    index = index if index.dtype.itemsize >= _INT32.itemsize else index.astype(_INT32)
    return lax.clamp(index.dtype.type(0), index, jnp.asarray(largest, index.dtype)).astype(_INT32)


@once_for_each_signature
def require_integers(operator: str, name: str, dtype: np.dtype) -> None:
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    message = f"{operator}: {name} has data type {data_type_name(dtype)}; it must be an integer"
    require(is_integer, message, DescriptorTypeError)


@once_for_each_signature
def _require_position(operator: str, position: tuple[int, ...], batch: int, tokens: int, length: int) -> None:
    wanted = f"it must be a scalar, or have shape ({batch},), one for each sequence"
    require(position in ((), (batch,)), f"{operator}: position has shape {position}; {wanted}")
    require(tokens <= length, f"{operator}: there are {tokens} tokens; the cache has room for {length}")
