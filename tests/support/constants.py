"""Constants that a program computes and rearranges, which equal an array and which XLA folds."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Thunk = Callable[[], jax.Array]


def is_integer(x: np.ndarray) -> bool:
    return jnp.issubdtype(x.dtype, jnp.integer)


def computed(x: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[str, Thunk]]:
    """Computations whose result is `x`, of at least one dimension, by the name of the operation that they use."""
    order = rng.permutation(len(x))
    permuted = x[order]
    yield "take", lambda: jnp.take(jnp.asarray(permuted), np.argsort(order), axis=0)
    yield "roll", lambda: jnp.roll(jnp.asarray(np.roll(x, 1, 0)), -1, 0)
    yield "pad", lambda: lax.pad(jnp.asarray(x), jnp.asarray(x.flat[0]), [(1, 1, 0)] * x.ndim)[(slice(1, -1),) * x.ndim]
    yield "set", lambda: jnp.asarray(np.concatenate([x[-1:], x[1:]])).at[0].set(x[0])
    mask = rng.random(x.shape) < 0.5
    yield "where", lambda: jnp.where(mask, np.where(mask, x, permuted), np.where(mask, permuted, x))
    if x.dtype.isbuiltin == 1:
        keys = np.broadcast_to(order.astype(np.int32).reshape(-1, *(1,) * (x.ndim - 1)), x.shape)
        yield "sort", lambda: lax.sort((jnp.asarray(keys), jnp.asarray(permuted)), 0, num_keys=1)[1]
    if not is_integer(x):
        if x.dtype == np.float32 or x.dtype == np.float16:
            low, high = np.nanmin(x) - x.dtype.type(1), np.nanmax(x) + x.dtype.type(1)
            yield "clip", lambda: jnp.clip(jnp.asarray(x), low, high)
        return
    if x.dtype.itemsize == 1:
        code = x.astype(np.int32).astype(np.uint8)
        significance = jnp.asarray([1, 16], np.uint8)

        def from_nibbles() -> jax.Array:
            bytes = jnp.asarray(code)
            nibbles = jnp.stack([bytes & np.uint8(15), bytes >> np.uint8(4)], -1)
            return lax.dot_general(nibbles, significance, (((x.ndim,), (0,)), ((), ()))).astype(x.dtype)

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
    """With integer arithmetic of the caller between the transposition and the operator."""
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
    """Broadcasts the first row if all rows of `x` are equal; transposes any other `x`."""
    return (x[:1].T, lambda y: jnp.broadcast_to(y.T, x.shape)) if (x == x[:1]).all() else transposed(x)


REARRANGED = {
    "transposed": transposed,
    "transposed and changed": transposed_and_changed,
    "reshaped": reshaped,
    "reversed": reversed_,
    "broadcast": broadcast,
}
"""By name, functions from an array to another array and to the function that restores the first from it."""


def rearranged(name: str, x: np.ndarray, rng: np.random.Generator) -> dict[str, Thunk]:
    """Programs whose result is `x`, by the name of the computation: each computes an array, and rearranges it."""
    array, restore = REARRANGED[name](x)
    computations = computed(np.ascontiguousarray(array), rng)
    return {computation: lambda thunk=thunk: restore(thunk()) for computation, thunk in computations}
