"""The convolution as a product with a matrix of patches (im2col).

That matrix has the elements of a window along one dimension, and the windows along the other.
"""

import math

import jax
import jax.numpy as jnp

from jquant.kernels.convolution.layout import Operands, columns, rows
from jquant.kernels.epilogue import Epilogue
from jquant.kernels.integer_dot import integer_dot


def product(operands: Operands, image: jax.Array, matrix: jax.Array, epilogue: Epilogue) -> jax.Array:
    """The convolution of a padded int8 image with int8 filters, followed by the epilogue, as `Operands.matrices` has it."""
    windows, first = operands.windows, operands.first_spatial
    if operands.layout.channels_last:
        patches = operands.matrices(windows.patches(image, first, operands.channels))
        if operands.layout.filters_last:
            return integer_dot(patches, columns(matrix), epilogue)
        return integer_dot(patches, rows(matrix, by_channel=False), epilogue, transpose_b=True)
    if operands.layout.by_channel:
        patches = windows.patches(jnp.expand_dims(image, 3), first + 1, 3)
        patches = patches.reshape(*patches.shape[:2], math.prod(patches.shape[2:4]), *patches.shape[4:])
    else:
        patches = windows.patches(image, first, operands.channels)
    return integer_dot(rows(matrix, operands.layout.by_channel), operands.matrices(patches), epilogue)
