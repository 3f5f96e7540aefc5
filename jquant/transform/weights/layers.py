"""The weights of a site, layer by layer: as matrices or filters, and quantized and packed."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.transform.formats import stored_weights
from jquant.transform.formats.stored_weights import FilterFormat, Stored
from jquant.transform.observations.statistics import InputStatistics
from jquant.transform.program.layouts import Storage
from jquant.transform.weights import prepared_weights
from jquant.transform.weights.prepared_weights import Packed


class Outcome(NamedTuple):
    """How the packing of weights went, in each layer.

    Attributes:
      succeeded: whether they could be rounded: GPTQ may fail.
      largest: the largest magnitude, which is not finite if one of them is not.
      is_clipped: whether a scale is the largest of its type, and weights beyond it are clipped.
    """

    succeeded: jax.Array
    largest: jax.Array
    is_clipped: jax.Array


@functools.partial(jax.jit, static_argnums=(0, 1))
def packed_weights(
    storage: Storage, num_levels: int, weights: jax.Array, statistics: InputStatistics | None = None
) -> tuple[Stored, Outcome]:
    """The weights of a site, quantized and packed: what the quantized parameters hold; and how that went in each layer.

    For a product or a table, they are a matrix of shape (batch, contracted, kept), without the batch if there is none, as
    the format stores it; for a convolution, a filter. The first `num_levels` dimensions are those of the layers.
    """

    def pack_one(layer: tuple[jax.Array, InputStatistics | None]) -> tuple[Stored, Outcome]:
        packed = pack_layer(storage, *layer)
        return packed.stored, _outcome(packed)

    pack: Any = pack_one
    for _ in range(num_levels):  # one layer at a time: all at once would take the memory of several float models
        pack = functools.partial(lax.map, pack)
    return pack((weights, statistics))


def _outcome(packed: Packed) -> Outcome:
    """How the packing of a layer went."""
    scale: Any = getattr(packed.stored["values"], "scale", packed.stored.get("scale"))
    is_clipped = jnp.bool(False)
    if scale.dtype == np.float16:
        is_clipped = (scale == jnp.finfo(scale.dtype).max).any()
    largest = stored_weights.largest(packed.matrix, range(packed.matrix.ndim)).reshape(())
    return Outcome(succeeded=packed.succeeded, largest=largest, is_clipped=is_clipped)


def pack_layer(storage: Storage, weights: jax.Array, statistics: InputStatistics | None) -> Packed:
    """The weights of one layer, quantized and packed."""
    if storage.filter is not None:
        filter = weights.transpose(storage.filter)
        return Packed(_filter_format(storage).pack_filter(filter, _channel(storage)), jnp.bool(True), filter)
    return prepared_weights.pack(storage.format, storage.preparation, as_matrix(storage, weights), statistics)


def as_matrix(storage: Storage, weights: jax.Array) -> jax.Array:
    """The weights of one layer as a matrix, (batch, contracted, kept), without the batch if there is none."""
    matrix = weights.transpose([dimension for dimensions in storage.layout for dimension in dimensions])
    return matrix.reshape(matrix_sizes(storage, weights.shape))


def unpack_layer(storage: Storage, stored: Stored, shape: Sequence[int], dtype: Any) -> jax.Array:
    """The weights of one layer, dequantized: an array of this shape and dtype, smoothed and rotated as they are stored."""
    if storage.filter is not None:
        filter = _filter_format(storage).dequantize_filter(stored, _channel(storage), dtype)
        return filter.transpose(np.argsort(storage.filter))
    return from_matrix(storage, storage.format.dequantize(stored, matrix_sizes(storage, shape)[-2], dtype), shape)


def from_matrix(storage: Storage, matrix: jax.Array, shape: Sequence[int]) -> jax.Array:
    """The inverse of `as_matrix`, for weights of this shape."""
    order = [dimension for dimensions in storage.layout for dimension in dimensions]
    return matrix.reshape([shape[dimension] for dimension in order]).transpose(np.argsort(order))


def _filter_format(storage: Storage) -> FilterFormat:
    """The format of a convolution's filter."""
    return cast(FilterFormat, storage.format)


def _channel(storage: Storage) -> int:
    """The dimension of a filter, as it is stored, along which its output channels lie."""
    assert storage.filter is not None
    return storage.filter.index(*storage.layout.kept)


def matrix_sizes(storage: Storage, shape: Sequence[int]) -> list[int]:
    """The sizes of the matrix that stores weights of this shape."""
    sizes = [math.prod(shape[dimension] for dimension in dimensions) for dimensions in storage.layout]
    return sizes if storage.layout.batch else sizes[1:]
