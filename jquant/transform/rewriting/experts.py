"""Products with some of the matrices of a stack, as those of experts: an index or groups of rows select them."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jquant.lowering.varying import varying_as
from jquant.transform.formats.stored_weights import Stored
from jquant.transform.program.layouts import product_dimensions
from jquant.transform.program.plan import Site

_TILES = 8, 128  # the fewest and the most rows that are multiplied at once


def free_dimensions(site: Site) -> list[int]:
    """The dimensions of the weights' operand that belong to the index, and are no batch: each selects for all rows."""
    if site.is_ragged:
        return []
    batch = product_dimensions(site.equation, site.operand)[1]
    return [d for d, dimension in enumerate(site.dimensions) if dimension is None and d not in batch]


def selected(site: Site, stored: Stored, numbers: jax.Array) -> Stored:
    """The matrices of these numbers, as they are stored.

    Their arrays begin with a dimension for `free_dimensions` and one for the batch of the product, if there are any.
    """
    sizes = site.equation.invars[site.operand].aval.shape
    batch = product_dimensions(site.equation, site.operand)[1]
    in_batch = [d for d in batch if site.dimensions[d] is None]
    own_batch = [d for d in batch if d not in in_batch]
    free = free_dimensions(site)
    others = [d for d in range(len(sizes)) if d not in in_batch and d not in free]
    taken = [*in_batch, *free, *own_batch]  # the first dimensions of what is taken
    order = [taken.index(d) for d in (*free, *batch)]
    leading = [math.prod(sizes[d] for d in dimensions) for dimensions in (free, batch) if dimensions]
    numbers = numbers.transpose([*in_batch, *free, *others]).reshape([sizes[d] for d in (*in_batch, *free)])

    def take(array: jax.Array) -> jax.Array:
        if not array.ndim:  # of the whole stack
            return array
        rest = array.shape[1:]
        stack = array.reshape([-1, *(sizes[d] for d in own_batch), *rest])
        matrices = jnp.take(stack, numbers, axis=0, mode="clip")
        matrices = matrices.transpose([*order, *range(len(order), matrices.ndim)])
        return matrices.reshape([*leading, *rest])

    return jax.tree.map(take, stored)


def selected_floats(site: Site, weights: jax.Array, numbers: jax.Array) -> jax.Array:
    """The operand of the function's own product that an index selects from float weights."""
    kept = [dimension for dimension in site.dimensions if dimension is not None]
    index = [d for d, dimension in enumerate(site.dimensions) if dimension is None]
    others = [d for d in range(len(site.dimensions)) if d not in index]
    stack = weights.transpose([*site.selected, *kept]).reshape([-1, *(weights.shape[d] for d in kept)])
    numbers = numbers.transpose([*index, *others]).reshape([numbers.shape[d] for d in index])
    taken = jnp.take(stack, numbers, axis=0, mode="clip")
    order = [*index, *others]
    return taken.transpose([order.index(d) for d in range(len(order))])


def nan_beyond(site: Site, operand: jax.Array, numbers: jax.Array) -> jax.Array:
    """The operand, with NaN where the index is beyond the stack, if that is what the function selects there."""
    return jnp.where(numbers < 0, jnp.asarray(jnp.nan, operand.dtype), operand) if site.fills else operand


def product_by_groups(
    multiply: Callable[..., jax.Array], x: jax.Array, scale: jax.Array | None, stored: Stored, sizes: jax.Array
) -> jax.Array:
    """``multiply(rows, scale, matrix)`` of each group of rows of `x` and a matrix of its own; 0 for rows in no group.

    Args:
      multiply: of some rows, their scale, and the stored weights of one matrix.
      x: a matrix, whose first rows are the first group.
      scale: None, one number, or one for each row.
      stored: the matrices, one for each group.
      sizes: how many rows each group has.

    A loop multiplies up to `_TILES` rows of a group at once, and takes as many steps as there are tiles.
    """
    count, groups = x.shape[0], sizes.shape[0]
    tile = _tile(count, groups)
    padded = jnp.pad(x, ((0, tile), (0, 0)))
    scales = jnp.pad(scale, (0, tile)) if scale is not None and scale.ndim else None
    ends = jnp.minimum(jnp.cumsum(sizes), count).astype(jnp.int32)

    def rows(array: jax.Array, start: jax.Array) -> jax.Array:
        return lax.dynamic_slice_in_dim(array, start, tile)

    def product(start: jax.Array, group: jax.Array) -> jax.Array:
        own = jax.tree.map(lambda array: array[group] if array.ndim else array, stored)
        return multiply(rows(padded, start), scale if scales is None else rows(scales, start), own)

    def is_unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return state[0] < ends[-1]

    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start, output = state
        group = jnp.sum(ends <= start, dtype=jnp.int32)  # the first one that ends behind the row
        is_own = start + jnp.arange(tile, dtype=jnp.int32) < ends[group]
        new = jnp.where(is_own[:, None], product(start, group), rows(output, start))
        return jnp.minimum(start + tile, ends[group]), lax.dynamic_update_slice_in_dim(output, new, start, 0)

    result = jax.eval_shape(product, jnp.int32(0), jnp.int32(0))
    output = jnp.zeros((padded.shape[0], result.shape[1]), result.dtype)
    arrays = [array for array in jax.tree.leaves((x, scale, stored, sizes)) if array.ndim]
    initial = varying_as(arrays, jnp.int32(0)), varying_as(arrays, output)
    return lax.while_loop(is_unfinished, step, initial)[1][:count]


def _tile(count: Any, groups: int) -> int:
    """The rows that are multiplied at once: about those of a group."""
    fewest, most = _TILES
    if not isinstance(count, int):  # it depends on the inputs
        return most
    return min(max(1 << (-(-count // groups) - 1).bit_length(), fewest), most)
