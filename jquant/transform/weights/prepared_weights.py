"""Quantizes and packs a matrix of weights: smoothed, rotated, with its ranges searched, and rounded, as a scheme says."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.transform.formats import weight_formats
from jquant.transform.formats.stored_weights import SMOOTHING, BlockParameters, Stored, WeightFormat
from jquant.transform.observations.statistics import InputStatistics
from jquant.transform.recipes.preparation import Gptq, Preparation, SmoothQuant
from jquant.transform.weights import gptq, rotation, smoothing, weight_range


def without_factors(stored: Stored) -> Stored:
    """The arrays of the format alone."""
    return {name: array for name, array in stored.items() if name != SMOOTHING}


class Packed(NamedTuple):
    """A float matrix, packed.

    Attributes:
      stored: the arrays that store it.
      succeeded: whether it could be rounded: GPTQ may fail.
      matrix: the floats that were to be rounded: smoothed, rotated and corrected.
    """

    stored: Stored
    succeeded: jax.Array
    matrix: jax.Array


def pack(format: WeightFormat, preparation: Preparation, matrix: jax.Array, statistics: InputStatistics | None) -> Packed:
    """Packs a float matrix, (..., K, N). `statistics` are those of the inputs, if the preparation needs them."""
    succeeded = jnp.bool(True)
    if preparation == Preparation():
        return Packed(format.store(matrix, format.parameters(matrix)), succeeded, matrix)
    factors = _factors(format, preparation, matrix, statistics)
    matrix = prepared(preparation, matrix, factors)
    products = None
    if preparation.needs_products:
        assert statistics is not None
        products = _products(preparation, statistics.products, factors)
    if preparation.needs_errors:
        assert statistics is not None
        assert products is not None
        matrix, succeeded = _corrected(
            preparation.rounding, matrix, products, _products(preparation, statistics.errors, factors)
        )
    parameters = _parameters(format, preparation, matrix, products)
    rounded = matrix
    if preparation.rounding is not None:
        assert products is not None
        rounded, is_rounded = _rounded(format, preparation.rounding, matrix, parameters, products)
        succeeded = succeeded & is_rounded
    stored = format.store(rounded, parameters)
    return Packed(stored if factors is None else {**stored, SMOOTHING: factors}, succeeded, matrix)


def prepared(preparation: Preparation, matrix: jax.Array, factors: jax.Array | None) -> jax.Array:
    """The float32 matrix that is rounded: smoothed and rotated."""
    matrix = matrix.astype(jnp.float32) if factors is None else smoothing.divided(matrix, factors)
    return rotation.of_weights(matrix) if preparation.is_rotated else matrix


def updated(format: WeightFormat, preparation: Preparation, stored: Stored, update: jax.Array) -> Stored:
    """The arrays that store the weights with a float32 matrix added to them, rounded to nearest."""
    factors = stored.get(SMOOTHING)
    weights = without_factors(stored)
    if preparation != Preparation():
        update = prepared(preparation, update, factors)
    matrix = format.dequantize(weights, update.shape[-2], np.dtype("float32")) + update
    format = weight_formats.as_stored(format, weights)
    optional = {name: weights[name] for name in ("permutation",) if name in weights}
    if optional:
        matrix = jnp.take(matrix, optional["permutation"], axis=-2)
    result = {**format.store(matrix, _parameters(format, preparation, matrix)), **optional}
    return result if factors is None else {**result, SMOOTHING: factors}


def _parameters(
    format: WeightFormat, preparation: Preparation, matrix: jax.Array, products: jax.Array | None = None
) -> BlockParameters:
    """The parameters of the blocks. In a search, weights count as much as their inputs, if X^T X of these is known."""
    if not preparation.searches_range:
        return format.parameters(matrix)
    importance = None if products is None else jnp.diagonal(products, axis1=-2, axis2=-1)
    return weight_range.search(format, matrix, importance)


def _factors(
    format: WeightFormat, preparation: Preparation, matrix: jax.Array, statistics: InputStatistics | None
) -> jax.Array | None:
    """The factors of smoothing; None without smoothing."""
    if preparation.smoothing is None:
        return None
    assert statistics is not None
    if isinstance(preparation.smoothing, SmoothQuant):
        return smoothing.smooth_quant(preparation.smoothing, matrix.astype(jnp.float32), statistics.largest)

    def error(factors: jax.Array) -> jax.Array:
        changed = prepared(preparation, matrix, factors)
        difference = format.rounded(changed, format.parameters(changed)) - changed
        products = _products(preparation, statistics.products, factors)
        return jnp.sum(difference * jnp.matmul(products, difference, precision=lax.Precision.HIGHEST))

    return smoothing.awq(statistics.mean, error)


def _products(preparation: Preparation, products: jax.Array, factors: jax.Array | None) -> jax.Array:
    """X^T X of the inputs, or X^T of their errors, smoothed and rotated."""
    if factors is not None:
        of_rows = factors.reshape((1,) * (products.ndim - 2) + (-1, 1))
        products = products * of_rows * jnp.swapaxes(of_rows, -1, -2)
    return rotation.of_products(products) if preparation.is_rotated else products


def _corrected(
    options: Gptq | None, matrix: jax.Array, products: jax.Array, errors: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The matrices that make up for errors of their inputs, and whether that succeeded for all of them."""
    assert options is not None
    if matrix.ndim == 2:
        return gptq.corrected(options, matrix, products, errors)
    axis = 0 if products.ndim > 2 else None
    results, succeeded = jax.vmap(functools.partial(gptq.corrected, options), (0, axis, axis))(matrix, products, errors)
    return results, succeeded.all()


def _rounded(
    format: WeightFormat, options: Gptq, matrix: jax.Array, parameters: BlockParameters, products: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The matrices, rounded by GPTQ, and whether that succeeded for all of them."""
    if matrix.ndim == 2:
        return gptq.rounded(format, options, matrix, parameters, products)
    axes = {name: 0 if array.ndim else None for name, array in parameters.items()}
    function = functools.partial(gptq.rounded, format, options)
    axis = 0 if products.ndim > 2 else None
    results, succeeded = jax.vmap(function, (0, axes, axis))(matrix, parameters, products)
    return results, succeeded.all()
