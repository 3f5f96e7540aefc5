"""Functions of 8-bit integers, computed by a table of their 256 values where that is faster; and look-ups in tables."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jquant.lowering import by_platform, materialize
from jquant.lowering.bitcast import bitcast
from jquant.lowering.recording import recorded


def integers(dtype: np.dtype) -> jax.Array:
    """All integers of `dtype`, in the order of their bits."""
    return bitcast(lax.iota(jnp.uint8, 256), dtype)


def elementwise(
    function: Callable[..., jax.Array], x: jax.Array, *parameters: jax.Array, table: jax.Array | None = None
) -> jax.Array:
    """``function(x, *parameters)`` of 8-bit integers `x`: an element-wise function to integers of the same type.

    A TPU takes 6 to 9 cycles to look up a number, in which it computes with thousands: there, no table is used. Elsewhere,
    `table` is that of the function, if it has been computed before.

    The function also takes a function `once`, which it applies to an intermediate result: LLVM compiles a long computation
    of a few numbers much faster in two loops.
    """

    def by_table(x: jax.Array, *parameters: jax.Array) -> jax.Array:
        return look_up(function(integers(x.dtype), *parameters, once=materialize.once), x)

    def by_known_table(x: jax.Array, table: jax.Array, *_: jax.Array) -> jax.Array:
        return _taken(table, x)

    on_tpu = functools.partial(function, once=by_platform.unchanged)
    if table is None:
        return by_platform.like_first(by_table, x, *parameters, tpu=on_tpu)
    return by_platform.like_first(
        by_known_table, x, table, *parameters, tpu=lambda x, _, *parameters: on_tpu(x, *parameters)
    )


@recorded("lookup.look_up", elementwise=True, tables=("table",))
def look_up(table: jax.Array, index: jax.Array) -> jax.Array:
    """``table[index]``, for non-negative integers or their bits; split over a mesh like the index."""
    return _taken(materialize.once(table), index)


def _taken(table: jax.Array, index: jax.Array) -> jax.Array:
    index = bitcast(index, jnp.uint8) if index.dtype == jnp.int8 else index
    sharding = jax.typeof(index).sharding
    split = PartitionSpec(*sharding.spec, *(None,) * (table.ndim - 1))
    return table.at[index].get(mode="promise_in_bounds", out_sharding=sharding.update(spec=split))


@recorded("lookup.look_up_along", static=("axis",))
def look_up_along(axis: int, tables: jax.Array, index: jax.Array) -> jax.Array:
    """``tables[i, index[i, j, k], k]`` for `axis` 1, and so on: each slice has its own table; split like the index."""
    indices = [lax.broadcasted_iota(jnp.int32, index.shape, dimension) for dimension in range(index.ndim)]
    indices[axis] = index
    sharding = jax.typeof(index).sharding
    return materialize.once(tables).at[*indices].get(mode="promise_in_bounds", out_sharding=sharding)
