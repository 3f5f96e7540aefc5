"""Functions of 8-bit integers by a table of their values."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec


def integers(dtype: np.dtype) -> jax.Array:
    """All integers of `dtype`, in the order of their bits."""
    return lax.bitcast_convert_type(lax.iota(jnp.uint8, 256), dtype)


def look_up(table: jax.Array, index: jax.Array) -> jax.Array:
    """``table[index]``, of integers that are not negative or of their bits; split over a mesh as the index is."""
    index = lax.bitcast_convert_type(index, jnp.uint8) if index.dtype == jnp.int8 else index
    sharding = jax.typeof(index).sharding
    split = PartitionSpec(*sharding.spec, *(None,) * (table.ndim - 1))
    return table.at[index].get(out_sharding=sharding.update(spec=split))
