"""Constants that a program computes and rearranges, in place of the arrays that they equal; XLA folds them."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Thunk = Callable[[], jax.Array]


def is_integer(x: np.ndarray) -> bool:
    return jnp.issubdtype(x.dtype, jnp.integer)


def computed(x: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[str, Thunk]]:
    """Programs whose result is `x`, of at least one dimension, by the name of what they compute it with."""
    order = rng.permutation(len(x))
    others = x[order]
    yield "take", lambda: jnp.take(jnp.asarray(others), np.argsort(order), axis=0)
    yield "roll", lambda: jnp.roll(jnp.asarray(np.roll(x, 1, 0)), -1, 0)
    yield "pad", lambda: lax.pad(jnp.asarray(x), jnp.asarray(x.flat[0]), [(1, 1, 0)] * x.ndim)[(slice(1, -1),) * x.ndim]
    yield "set", lambda: jnp.asarray(np.concatenate([x[-1:], x[1:]])).at[0].set(x[0])
    mask = rng.random(x.shape) < 0.5
    yield "where", lambda: jnp.where(mask, np.where(mask, x, others), np.where(mask, others, x))
    if x.dtype.isbuiltin == 1:
        keys = np.broadcast_to(order.astype(np.int32).reshape(-1, *(1,) * (x.ndim - 1)), x.shape)
        yield "sort", lambda: lax.sort((jnp.asarray(keys), jnp.asarray(others)), 0, num_keys=1)[1]
    if not is_integer(x):
        if x.dtype == np.float32 or x.dtype == np.float16:
            low, high = np.nanmin(x) - x.dtype.type(1), np.nanmax(x) + x.dtype.type(1)
            yield "clip", lambda: jnp.clip(jnp.asarray(x), low, high)
        return
    if x.dtype.itemsize == 1:
        code = x.astype(np.int32).astype(np.uint8)
        places = jnp.asarray([1, 16], np.uint8)

        def from_nibbles() -> jax.Array:
            bytes = jnp.asarray(code)
            nibbles = jnp.stack([bytes & np.uint8(15), bytes >> np.uint8(4)], -1)
            return lax.dot_general(nibbles, places, (((x.ndim,), (0,)), ((), ()))).astype(x.dtype)

        yield "nibbles", from_nibbles
    if x.dtype.itemsize <= 2:
        wide = x.astype(np.int32)
        yield "shift", lambda: (jnp.asarray(wide << 3) >> 3).astype(x.dtype)
        yield "quotient", lambda: (jnp.asarray(wide * 3) // 3).astype(x.dtype)
        beyond = np.where(wide == wide.max(), wide + 5, wide)
        yield "clip", lambda: jnp.clip(jnp.asarray(beyond), None, wide.max()).astype(x.dtype)
        yield "sums", lambda: jnp.cumsum(jnp.asarray(np.diff(wide, axis=0, prepend=np.int32(0))), 0).astype(x.dtype)


def transposed(x: np.ndarray) -> tuple[np.ndarray, Callable]:
    return x.T, jnp.transpose


def transposed_and_changed(x: np.ndarray) -> tuple[np.ndarray, Callable]:
    """A caller's own arithmetic between the transposition and the operator."""
    if is_integer(x) and x.dtype.itemsize < 4:
        wide = x.astype(np.int32)
        a, b, c = (np.array(number, np.int32).astype(x.dtype) for number in (5, 3, 6))
        return (((wide ^ 6) - 3) ^ 5).astype(x.dtype).T, lambda y: ((y.T ^ a) + b) ^ c
    if is_integer(x):
        return (x ^ x.dtype.type(5)).T, lambda y: y.T ^ x.dtype.type(5)
    if x.dtype == bool:
        return ~x.T, lambda y: ~y.T
    return -x.T, lambda y: -lax.max(y.T, lax.full_like(y.T, -jnp.inf)) if x.dtype == np.float32 else -y.T


def reshaped(x: np.ndarray) -> tuple[np.ndarray, Callable]:
    return x.reshape(x.shape[::-1]), lambda y: y.reshape(x.shape)


def reversed_(x: np.ndarray) -> tuple[np.ndarray, Callable]:
    return np.flip(x), jnp.flip


def broadcast(x: np.ndarray) -> tuple[np.ndarray, Callable]:
    """An `x` whose rows are all the same; any other is transposed."""
    return (x[:1].T, lambda y: jnp.broadcast_to(y.T, x.shape)) if (x == x[:1]).all() else transposed(x)


REARRANGED = {
    "transposed": transposed,
    "transposed and changed": transposed_and_changed,
    "reshaped": reshaped,
    "reversed": reversed_,
    "broadcast": broadcast,
}
"""From an array to another one and to the function that makes the first of the second."""


def rearranged(name: str, x: np.ndarray, rng: np.random.Generator) -> dict[str, Thunk]:
    """Programs whose result is `x`: each computes an array, and rearranges that."""
    before, function = REARRANGED[name](x)
    return {way: lambda thunk=thunk: function(thunk()) for way, thunk in computed(np.ascontiguousarray(before), rng)}
