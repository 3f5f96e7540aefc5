"""Depthwise convolutions, whose filters have one channel, as shifted multiplications."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.kernels import epilogue as epilogues
from jquant.kernels.convolution.layout import Operands, rows
from jquant.kernels.epilogue import Epilogue

# A sum of more shifted multiplications becomes a loop over this many at a time, so that code does not grow with the filter.
_MOST_SHIFTS, _SHIFTS_AT_ONCE = 64, 16


def convolution(operands: Operands, epilogue: Epilogue) -> jax.Array:
    """For each channel, the sum over the elements of a window of their products with the elements of the filter."""
    image, rank = operands.image.astype(jnp.int16), operands.image.ndim
    if operands.input_zero_point is not None:
        image = image - operands.input_zero_point.astype(jnp.int16).reshape((1,) * rank)
    image = operands.padded(image, np.int16(0))
    weights, zero_point = rows(operands.matrix, operands.layout.by_channel), operands.filter_zero_point
    if zero_point is not None:
        sizes = weights.shape[1:3] if zero_point.size > 1 else (1, 1)
        weights = weights.astype(jnp.int32) - zero_point.astype(jnp.int32).reshape(1, *sizes, 1)
    count = weights.shape[3]

    def product(element: jax.Array, weight: jax.Array) -> jax.Array:
        # Converted here: XLA:CPU would convert all weights in a separate loop, which is one more to compile.
        return element.astype(jnp.int32) * operands.by_filter(weight, rank).astype(jnp.int32)

    if count <= _MOST_SHIFTS:
        elements = enumerate(operands.windows.elements(image, operands.first_spatial))
        total = functools.reduce(operator.add, (product(element, weights[:, :, :, index]) for index, element in elements))
    else:
        rounds = -(-(count - 1) // _SHIFTS_AT_ONCE)
        weights = jnp.pad(weights, [(0, 0)] * 3 + [(0, rounds * _SHIFTS_AT_ONCE + 1 - count)])

        def shifted(number: jax.Array | np.integer) -> jax.Array:
            element = operands.windows.element(image, operands.first_spatial, number)
            return product(element, lax.dynamic_index_in_dim(weights, number, 3, keepdims=False))

        def add(index: jax.Array, total: jax.Array) -> jax.Array:
            numbers = (1 + index * _SHIFTS_AT_ONCE + part for part in range(_SHIFTS_AT_ONCE))
            return functools.reduce(operator.add, map(shifted, numbers), total)

        total = lax.fori_loop(np.int32(0), np.int32(rounds), add, shifted(np.int32(0)))
    steps = jax.tree.map(functools.partial(operands.by_filter, rank=rank), epilogue)
    return epilogues.apply(steps, total)
