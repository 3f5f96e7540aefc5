"""The convolution of quantized tensors: products of matrices on the integer unit, wherever there is a sum for one.

A matrix of patches has the elements of each window along one dimension, and the windows along the other. Its product with
the matrix of filters is the convolution, and through `integer_dot` has all that products have.
"""

import functools
import math
import operator
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jquant.arithmetic import signs
from jquant.formulas.windows import Geometry, Windows
from jquant.kernels import epilogue as epilogues
from jquant.kernels import zero_point as zero_points
from jquant.kernels.epilogue import Epilogue
from jquant.kernels.integer_dot import integer_dot

# Filters of one channel: up to so many for each, which sum over the elements of a window alone, shifted multiplications are
# faster than a product of matrices; on a CPU, one is three times as fast, four are level.
_FEW_FILTERS = 4


def convolution(
    input: jax.Array,
    filter: jax.Array,
    input_zero_point: jax.Array | None,
    filter_zero_point: jax.Array | None,
    geometry: Geometry,
    epilogue: Epilogue = (),
) -> jax.Array:
    """``epilogue(convolution of (input - input_zero_point) and (filter - filter_zero_point))``, the convolution in int32.

    Padding counts as the zero point of the input.

    Args:
      input: int8 or uint8.
      filter: int8 or uint8.
      input_zero_point: of the dtype of `input`, one element, or None.
      filter_zero_point: of the dtype of `filter`, one element or one for each filter, or None.
      geometry: the layout of the input, of the filter and of the result, groups and windows.
      epilogue: the steps that follow, whose arrays have one element or one for each filter.
    """
    groups, windows = geometry.groups, geometry.windows
    filters, depth = (filter.shape[dimension] for dimension in geometry.dimensions.rhs_spec[:2])
    way = _shifted if depth == 1 and filters // groups <= _FEW_FILTERS else _multiplied
    # The products of several groups want each group's channels together.
    channels_last = geometry.channels_last and (groups == 1 or way is _shifted)
    input, filter = geometry.arranged(input, filter, channels_last=channels_last)
    # Dimensions are split, or joined, one reshape at a time: so JAX knows what that is over explicit axes of a mesh.
    matrix = jnp.swapaxes(filter.reshape(filters, depth, math.prod(windows.sizes)), 1, 2)
    matrix = matrix.reshape(1, groups, filters // groups, *matrix.shape[1:])
    if channels_last:
        batch, *space, _ = input.shape
        image = input.reshape(batch, *space, groups, depth)
    else:
        batch, _, *space = input.shape
        image = input.reshape(batch, groups, depth, *space)
    product = way(_Operands(image, matrix, input_zero_point, filter_zero_point, windows, channels_last), epilogue)
    if channels_last:
        output = product.reshape(batch, *product.shape[1:-2], filters).reshape(batch, *windows.counts(space), filters)
    else:
        output = product.reshape(batch, filters, *product.shape[3:]).reshape(batch, filters, *windows.counts(space))
    return geometry.restored(output, channels_last=channels_last)


class _Operands(NamedTuple):
    """A convolution as its ways take it.

    As the input has its channels, so have patches and products, so that nothing of their size is transposed: in the products
    of matrices, the windows are the columns, or with `channels_last` the rows.

    Attributes:
      image: of shape (batch, groups, channels, ...), or (batch, ..., groups, channels) with `channels_last`.
      matrix: of shape (1, groups, filters, elements of a window, channels).
    """

    image: jax.Array
    matrix: jax.Array
    input_zero_point: jax.Array | None
    filter_zero_point: jax.Array | None
    windows: Windows
    channels_last: bool

    @property
    def channels(self) -> int:
        """The dimension of the channels, and in a product of the filters."""
        return self.image.ndim - 1 if self.channels_last else 2

    @property
    def first_spatial(self) -> int:
        return 1 if self.channels_last else 3

    def padded(self, image: jax.Array, value: jax.Array | np.number) -> jax.Array:
        padding = [(0, 0, 0)] * image.ndim
        for dimension, (low, high) in enumerate(self.windows.padding, start=self.first_spatial):
            padding[dimension] = low, high, 0
        return lax.pad(image, value, padding)

    def elements(self, padded: jax.Array) -> Iterator[jax.Array]:
        """Of each window, one after the other."""
        return self.windows.elements(padded, self.first_spatial)

    def matrices(self, x: jax.Array) -> jax.Array:
        """The spatial dimensions as one: (batch, groups, channels, space) or (batch, groups, space, channels)."""
        if self.channels_last:
            return jnp.swapaxes(x.reshape(x.shape[0], math.prod(x.shape[1:-2]), *x.shape[-2:]), 1, 2)
        return x.reshape(*x.shape[:3], math.prod(x.shape[3:]))

    def by_filter(self, x: jax.Array, rank: int) -> jax.Array:
        """One element, or one for each filter, as it stands beside a product of `rank` dimensions."""
        _, groups, filters, *_ = self.matrix.shape if x.size > 1 else (1, 1, 1)
        ones = (1,) * (rank - 3)
        return x.reshape((1, *ones, groups, filters) if self.channels_last else (1, groups, filters, *ones))


def _shifted(operands: _Operands, epilogue: Epilogue) -> jax.Array:
    """The sum of the elements of the windows, each times the element of the filter, of a single channel."""
    image, rank = operands.image.astype(jnp.int16), operands.image.ndim
    if operands.input_zero_point is not None:
        image = image - operands.input_zero_point.astype(jnp.int16).reshape((1,) * rank)
    elements = operands.elements(operands.padded(image, np.int16(0)))
    weights = operands.matrix.astype(jnp.int32)
    zero_point = operands.filter_zero_point
    zero_point = np.int32(0) if zero_point is None else operands.by_filter(zero_point, rank).astype(jnp.int32)
    products = [
        element.astype(jnp.int32) * (operands.by_filter(weights[:, :, :, index], rank) - zero_point)
        for index, element in enumerate(elements)
    ]
    steps = jax.tree.map(functools.partial(operands.by_filter, rank=rank), epilogue)
    return epilogues.apply(steps, functools.reduce(operator.add, products))


def _multiplied(operands: _Operands, epilogue: Epilogue) -> jax.Array:
    """The product of two matrices of int8, corrected for zero points."""
    by_filter = functools.partial(operands.by_filter, rank=4)
    input_zero_point, filter_zero_point = (
        zero_points.shifted(None if zero_point is None else by_filter(zero_point), x.dtype, 4)
        for x, zero_point in (
            (operands.image, operands.input_zero_point),
            (operands.matrix, operands.filter_zero_point),
        )
    )
    image, matrix = signs.to_int8(operands.image), signs.to_int8(operands.matrix)
    no_value = np.int8(0) if input_zero_point is None else input_zero_point.astype(jnp.int8).reshape(())
    image, matrix = operands.padded(image, no_value), matrix.reshape(*matrix.shape[:3], -1)
    window_sum = None if filter_zero_point is None else _window_sum(operands, image)
    filter_sum = None if input_zero_point is None else by_filter(zero_points.row_sum(matrix))
    k = matrix.shape[-1]
    if operands.channels_last:
        fold = zero_points.fold(input_zero_point, filter_zero_point, window_sum, filter_sum, k)
    else:
        fold = zero_points.fold(filter_zero_point, input_zero_point, filter_sum, window_sum, k)
    multiply = functools.partial(_product_with_patches, operands)
    steps = (fold, *jax.tree.map(by_filter, epilogue))
    if matrix.shape[1] > 1:
        return multiply(image, matrix, steps)
    convolve = functools.partial(_convolution_of_xla, operands)
    product = lax.platform_dependent(image, matrix, steps, tpu=convolve, default=multiply)
    return jnp.swapaxes(product, 1, 2) if operands.channels_last else product


def _window_sum(operands: _Operands, image: jax.Array) -> jax.Array:
    """The sum over each window of a padded image in int8: over the channels first, which there is much less of."""
    summed = zero_points.row_sum if operands.channels_last else zero_points.column_sum
    sizes = list(image.shape)
    sizes[operands.channels] = 1
    by_pixel = summed(operands.matrices(image)).reshape(sizes)
    return operands.matrices(functools.reduce(operator.add, operands.elements(by_pixel)))


def _product_with_patches(operands: _Operands, image: jax.Array, matrix: jax.Array, epilogue: Epilogue) -> jax.Array:
    patches = operands.matrices(lax.concatenate(list(operands.elements(image)), operands.channels))
    if operands.channels_last:
        return integer_dot(patches, matrix, epilogue, transpose_b=True)
    return integer_dot(matrix, patches, epilogue)


def _convolution_of_xla(operands: _Operands, image: jax.Array, matrix: jax.Array, epilogue: Epilogue) -> jax.Array:
    """The same without patches in the memory. XLA's TPU programs of it are for the int8 unit, unless there are groups.

    That was read from the programs; it has not been measured. On a CPU it is a slow loop, and on GPUs it has not been tried.
    """
    filter = jnp.squeeze(matrix, (0, 1)).reshape(matrix.shape[2], *operands.windows.sizes, operands.matrix.shape[-1])
    group = image.ndim - 2 if operands.channels_last else 1
    image, last = jnp.squeeze(image, group), image.ndim - 2
    layout = (0, last, *range(1, last)) if operands.channels_last else tuple(range(last + 1))
    split = {0: jax.typeof(image).sharding.spec[0], layout[1]: jax.typeof(filter).sharding.spec[0]}
    spec = PartitionSpec(*(split.get(dimension) for dimension in range(image.ndim)))
    product = lax.conv_general_dilated(
        image,
        filter,
        window_strides=operands.windows.strides,
        padding="VALID",
        rhs_dilation=operands.windows.dilations,
        dimension_numbers=lax.ConvDimensionNumbers(layout, (0, last, *range(1, last)), layout),
        preferred_element_type=jnp.int32,
        # Over explicit axes: JAX asks for it where the filters are split.
        out_sharding=jax.typeof(image).sharding.update(spec=spec) if split[layout[1]] else None,
    )
    return epilogues.apply(epilogue, operands.matrices(jnp.expand_dims(product, group)))
