"""Caches of keys and values as onnxruntime's GroupQueryAttention keeps them: (batch, heads, length, width)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jquant.arithmetic import exact, subbyte
from jquant.errors import ModelError
from jquant.kv_cache.rows import updated
from jquant.lowering import materialize

_NOWHERE = np.int32(2**31 - 1)


class Span(NamedTuple):
    """Where the tokens of a call are: those of each sequence are at the positions from `start` to `end`, shape (batch,)."""

    start: jax.Array
    end: jax.Array


class Tokens(NamedTuple):
    """What queries can see.

    Attributes:
      stored: (batch, heads, keys, width), as the cache stores it.
      positions: the position of each key in its sequence, (batch or 1, keys). Where there is no key, it is past the end.
      present: the cache after the call.
    """

    stored: jax.Array
    positions: jax.Array
    present: jax.Array


def whole(past: jax.Array | None, rows: jax.Array, span: Span, length: int) -> Tokens:
    """A cache of all positions: `past`, made longer if it has less than `length` of them, with `rows` at their positions."""
    if past is None:
        past = jnp.zeros((*rows.shape[:2], 0, rows.shape[3]), rows.dtype)
    padded = jnp.pad(past, ((0, 0), (0, 0), (0, length - past.shape[2]), (0, 0)))
    # XLA would fuse the update also with the product that reads it, and copy the cache there.
    present = materialize.stored(updated(padded, rows, span.start[0] if span.start.shape == (1,) else span.start))
    return Tokens(present, jnp.arange(length, dtype=np.int32)[None], present)


def windowed(past: jax.Array | None, rows: jax.Array, span: Span, window: int) -> Tokens:
    """A cache of the latest positions, the first of them in its first row.

    Of T tokens so far, a cache of C rows holds all if they fit. Else it holds ``T - G * ceil((T - C) / G)``, with
    ``G = C - window + 1``: room is made for G tokens at a time.
    """
    if past is None:
        raise ModelError("sliding_window_cache needs past_key and past_value")
    capacity, count = past.shape[2], rows.shape[2]
    if window < 1 or capacity < window:
        raise ModelError(f"a sliding_window_cache of {capacity} rows with a local_window_size of {window} is not supported")

    def first(tokens: jax.Array) -> jax.Array:
        """The position of the first row after so many tokens."""
        removed = capacity - window + 1
        return removed * jnp.maximum(-(-(tokens - capacity) // removed), 0)

    start, end = (each[:, None] for each in span)
    joined = jnp.concatenate([past, rows], 2)
    in_past, in_rows = (jnp.arange(size, dtype=np.int32)[None] for size in (capacity, count))
    held = first(start) + in_past
    new = start + in_rows
    positions = jnp.concatenate([jnp.where(held < start, held, _NOWHERE), jnp.where(new < end, new, _NOWHERE)], 1)
    wanted = first(end) + in_past
    index = jnp.where(wanted < start, wanted - first(start), capacity + wanted - start)
    present = jnp.take_along_axis(joined, index[:, None, :, None], 2, mode="clip")
    return Tokens(joined, positions, present)


def quantized(rows: jax.Array, scale: jax.Array, bits: int) -> jax.Array:
    """Rows as a cache of `bits` stores them; 4-bit integers lie in bytes, 8 added to them, the first in the low bits.

    Args:
      rows: (batch, heads, tokens, width).
      scale: float32, one, or one for each head and channel in shape (heads, 1, width).
    """
    quotient = exact.quotient(rows.astype(jnp.float32), scale)
    integers = jnp.clip(jnp.rint(quotient), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1).astype(jnp.int8)
    return integers if bits == 8 else subbyte.packed((integers + np.int8(8)).astype(jnp.uint8), 4, -1)


def as_floats(stored: jax.Array, bits: int) -> jax.Array:
    """The integers of a cache as float32, without their scale."""
    if bits == 8:
        return stored.astype(jnp.float32)
    return subbyte.unpacked_along(stored, 4, -1, 2 * stored.shape[-1]).astype(jnp.float32) - 8
