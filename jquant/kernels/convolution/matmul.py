"""The convolution as a product of int8 matrices, or as XLA's own int8 convolution, corrected for signs and zero points."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jquant.arithmetic import signs
from jquant.kernels import epilogue as epilogues
from jquant.kernels import zero_point as zero_points
from jquant.kernels.convolution import im2col, xla
from jquant.kernels.convolution.layout import Operands, columns, rows
from jquant.kernels.epilogue import Epilogue
from jquant.lowering import materialize

Implementation = Callable[[Operands, jax.Array, jax.Array, Epilogue], jax.Array]


def convolution(operands: Operands, epilogue: Epilogue, *, fast_on_cpu: bool) -> jax.Array:
    """The convolution in int8, corrected for zero points, and followed by the epilogue."""
    by_filter = functools.partial(operands.by_filter, rank=4)
    input_zero_point, filter_zero_point = (
        zero_points.shifted(None if zero_point is None else by_filter(zero_point), x.dtype, 4)
        for x, zero_point in (
            (operands.image, operands.input_zero_point),
            (operands.matrix, operands.filter_zero_point),
        )
    )
    image, matrix = signs.to_int8(operands.image), signs.to_int8(operands.matrix)
    padding = np.int8(0) if input_zero_point is None else input_zero_point.astype(jnp.int8).reshape(())
    image = operands.padded(image, padding)
    if math.prod(operands.windows.sizes) > 1:
        image = materialize.stored(image)  # otherwise XLA:CPU computes it again for each slice
    window_sum = None if filter_zero_point is None else _window_sum(operands, image)
    filter_sum = None if input_zero_point is None else by_filter(_filter_sum(operands, matrix))
    k = math.prod(matrix.shape[3:])
    if operands.layout.channels_last:
        correction = zero_points.correction(input_zero_point, filter_zero_point, window_sum, filter_sum, k)
    else:
        correction = zero_points.correction(filter_zero_point, input_zero_point, filter_sum, window_sum, k)
    steps = (correction, *jax.tree.map(by_filter, epilogue))
    if matrix.shape[1] > 1:
        return im2col.product(operands, image, matrix, steps)
    implementations: dict[str, Implementation] = {"tpu": xla.convolution, "default": im2col.product}
    if fast_on_cpu:
        implementations["cpu"] = xla.convolution_on_cpu
    by_platform = {platform: functools.partial(_in_layout, operands, each) for platform, each in implementations.items()}
    return lax.platform_dependent(image, matrix, steps, **by_platform)


def _in_layout(
    operands: Operands, implementation: Implementation, image: jax.Array, matrix: jax.Array, epilogue: Epilogue
) -> jax.Array:
    """The convolution in the layout of the result. XLA:CPU fuses the transposition of the product into the epilogue."""
    if not operands.layout.channels_last:
        return implementation(operands, image, matrix, epilogue)
    if operands.layout.result_last:
        return jnp.swapaxes(implementation(operands, image, matrix, epilogue), 1, 2)
    product = jnp.swapaxes(implementation(operands, image, matrix, ()), 2, 3)
    return epilogues.apply(jax.tree.map(lambda x: jnp.swapaxes(x, 2, 3), epilogue), product)


def _filter_sum(operands: Operands, matrix: jax.Array) -> jax.Array:
    """The sum of each filter in int8, whose elements are read in the order in which memory has them."""
    if operands.layout.filters_last:
        return zero_points.column_sum(columns(matrix))
    return zero_points.row_sum(rows(matrix, operands.layout.by_channel))


def _window_sum(operands: Operands, image: jax.Array) -> jax.Array:
    """The sum over each window of a padded int8 image: over the channels first, which leaves much less to sum."""
    sum_channels = zero_points.row_sum if operands.layout.channels_last else zero_points.column_sum
    sizes = list(image.shape)
    sizes[operands.channels] = 1
    by_pixel = sum_channels(operands.matrices(image))
    by_pixel = (jnp.swapaxes(by_pixel, 1, 2) if operands.layout.channels_last else by_pixel).reshape(sizes)
    sums = operands.matrices(operands.windows.sums(by_pixel, operands.first_spatial))
    if operands.layout.result_last or math.prod(operands.windows.sizes) == 1:
        return sums
    # Otherwise XLA:CPU sums each window again for each filter, in the loop of the epilogue.
    return materialize.once_on_cpu(sums)
