"""The convolution of quantized tensors: matrix products on the integer unit, wherever there is a sum for it.

A matrix of patches has the elements of each window along one dimension, and the windows along the other. Its product with
the matrix of filters is the convolution. Through `integer_dot`, it has everything that products have.

Where XLA has a convolution on the integer unit, that is used instead: on TPUs, and on CPUs with many channels and windows.
"""

import functools
import math
import operator
from collections.abc import Sequence
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
from jquant.lowering import cpu_features, materialize
from jquant.lowering.partitioned import unless_partitioned

# For filters of one channel, which only sum over the elements of a window: up to this many filters per channel, shifted
# multiplications are faster than a matrix product. On a CPU, one is three times as fast, four are level.
_FEW_FILTERS = 4

# From this many channels on, XLA:CPU's own convolution takes a half to a quarter of the time of a product with patches, as
# measured on x86-64. Where XLA only has its loop for all convolutions, it would take a hundred times as long.
_MANY_CHANNELS = 16

# XLA's own convolution arranges the filters anew in each call. Up to this many windows per filter, that takes longer than to
# make patches and to multiply them by the filters as they are.
_FEW_WINDOWS = 4

# A sum of more shifted multiplications is a loop over this many at a time: the compiled code does not grow with the filter.
_MOST_SHIFTS, _SHIFTS_AT_ONCE = 64, 16


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
      geometry: the layout of the input, of the filter and of the result; groups and windows.
      epilogue: the steps that follow, whose arrays have one element or one for each filter.
    """
    groups, windows = geometry.groups, geometry.windows
    filters, depth = (filter.shape[dimension] for dimension in geometry.dimensions.rhs_spec[:2])
    way = _shifted if depth == 1 and filters // groups <= _FEW_FILTERS else _multiplied
    # The products of several groups need each group's channels together.
    result_last = geometry.channels_last and (groups == 1 or way is _shifted)
    is_wide = groups == 1 and _is_wide(input.shape, filter.shape, geometry)
    channels_last = result_last or is_wide
    input, filter = geometry.arranged(input, filter, channels_last=channels_last)
    # Dimensions are split or joined one reshape at a time, so that JAX can follow them over explicit axes of a mesh.
    matrix = filter.reshape(1, groups, filters // groups, depth, *windows.sizes)
    if channels_last:
        batch, *space, _ = input.shape
        image = input.reshape(batch, *space, groups, depth)
    else:
        batch, _, *space = input.shape
        image = input.reshape(batch, groups, depth, *space)
    given = image, matrix, input_zero_point, filter_zero_point
    layout = channels_last, result_last, geometry.dimensions.rhs_spec
    product = way(_Operands(*given, windows, is_wide, *layout), epilogue)
    if result_last:
        output = product.reshape(batch, *product.shape[1:-2], filters).reshape(batch, *windows.counts(space), filters)
    else:
        output = product.reshape(batch, filters, *product.shape[3:]).reshape(batch, filters, *windows.counts(space))
    return geometry.restored(output, channels_last=result_last)


def _is_wide(sizes: Sequence[int], filter_sizes: Sequence[int], geometry: Geometry) -> bool:
    """Whether XLA:CPU's own convolution takes this, if it has one group and the channels last."""
    dimensions, windows = geometry.dimensions, geometry.windows
    batch, _, *space = (sizes[dimension] for dimension in dimensions.lhs_spec)
    filters, channels, *_ = (filter_sizes[dimension] for dimension in dimensions.rhs_spec)
    many = channels >= _MANY_CHANNELS and max(channels, filters) > _MANY_CHANNELS
    if not cpu_features.HAS_INT8_CONVOLUTION or not many or math.prod(windows.sizes) == 1 or len(windows.sizes) > 2:
        return False
    counts = batch, *windows.counts(space)
    return not all(isinstance(count, int) for count in counts) or math.prod(counts) > _FEW_WINDOWS * filters


class _Operands(NamedTuple):
    """A convolution in the form that the implementations take.

    Patches and products have their channels where the input has them, so that nothing of their size is transposed: in the
    matrix products, the windows are the columns, or with `channels_last` the rows.

    Attributes:
      image: of shape (batch, groups, channels, ...), or (batch, ..., groups, channels) with `channels_last`.
      matrix: of shape (1, groups, filters, channels, ...).
      is_wide: whether XLA:CPU's own convolution takes it.
      result_last: whether the result has its channels last; it may have them second where the image has them last.
      filter_spec: where in memory the filters, their channels and their elements are.
    """

    image: jax.Array
    matrix: jax.Array
    input_zero_point: jax.Array | None
    filter_zero_point: jax.Array | None
    windows: Windows
    is_wide: bool
    channels_last: bool
    result_last: bool
    filter_spec: Sequence[int]

    @property
    def filters_last(self) -> bool:
        return self.filter_spec[0] == len(self.filter_spec) - 1

    @property
    def by_channel(self) -> bool:
        """Whether filters have all elements of a channel together in memory; otherwise, all channels of an element."""
        return self.filter_spec[1] < min(self.filter_spec[2:])

    @property
    def channels(self) -> int:
        """The dimension of the channels; in a product, that of the filters."""
        return self.image.ndim - 1 if self.channels_last else 2

    @property
    def first_spatial(self) -> int:
        return 1 if self.channels_last else 3

    def padded(self, image: jax.Array, value: jax.Array | np.number) -> jax.Array:
        if not any(map(any, self.windows.padding)):
            return image
        padding = [(0, 0, 0)] * image.ndim
        for dimension, (low, high) in enumerate(self.windows.padding, start=self.first_spatial):
            padding[dimension] = low, high, 0
        return lax.pad(image, value, padding)

    def matrices(self, x: jax.Array) -> jax.Array:
        """The spatial dimensions as one: (batch, groups, channels, space) or (batch, groups, space, channels)."""
        if self.channels_last:
            return jnp.swapaxes(x.reshape(x.shape[0], math.prod(x.shape[1:-2]), *x.shape[-2:]), 1, 2)
        return x.reshape(*x.shape[:3], math.prod(x.shape[3:]))

    def by_filter(self, x: jax.Array, rank: int) -> jax.Array:
        """One element, or one for each filter, in a shape that broadcasts to a product of `rank` dimensions."""
        _, groups, filters, *_ = self.matrix.shape if x.size > 1 else (1, 1, 1)
        ones = (1,) * (rank - 3)
        return x.reshape((1, *ones, groups, filters) if self.channels_last else (1, groups, filters, *ones))


def _shifted(operands: _Operands, epilogue: Epilogue) -> jax.Array:
    """The sum over the elements of the windows, each times the element of the filter, for a single channel."""
    image, rank = operands.image.astype(jnp.int16), operands.image.ndim
    if operands.input_zero_point is not None:
        image = image - operands.input_zero_point.astype(jnp.int16).reshape((1,) * rank)
    image = operands.padded(image, np.int16(0))
    weights, zero_point = _rows(operands.matrix, operands.by_channel), operands.filter_zero_point
    if zero_point is not None:
        sizes = weights.shape[1:3] if zero_point.size > 1 else (1, 1)
        weights = weights.astype(jnp.int32) - zero_point.astype(jnp.int32).reshape(1, *sizes, 1)
    elements = weights.shape[3]

    def product(element: jax.Array, weight: jax.Array) -> jax.Array:
        # Converted here: XLA:CPU would compute the weights in int32 in a loop of its own, which is one more to compile.
        return element.astype(jnp.int32) * operands.by_filter(weight, rank).astype(jnp.int32)

    if elements <= _MOST_SHIFTS:
        each = enumerate(operands.windows.elements(image, operands.first_spatial))
        total = functools.reduce(operator.add, (product(element, weights[:, :, :, index]) for index, element in each))
    else:
        rounds = -(-(elements - 1) // _SHIFTS_AT_ONCE)
        weights = jnp.pad(weights, [(0, 0)] * 3 + [(0, rounds * _SHIFTS_AT_ONCE + 1 - elements)])

        def shifted(number: jax.Array | np.integer) -> jax.Array:
            element = operands.windows.element(image, operands.first_spatial, number)
            return product(element, lax.dynamic_index_in_dim(weights, number, 3, keepdims=False))

        def add(index: jax.Array, total: jax.Array) -> jax.Array:
            numbers = (1 + index * _SHIFTS_AT_ONCE + part for part in range(_SHIFTS_AT_ONCE))
            return functools.reduce(operator.add, map(shifted, numbers), total)

        total = lax.fori_loop(np.int32(0), np.int32(rounds), add, shifted(np.int32(0)))
    steps = jax.tree.map(functools.partial(operands.by_filter, rank=rank), epilogue)
    return epilogues.apply(steps, total)


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
    image = operands.padded(image, no_value)
    if math.prod(operands.windows.sizes) > 1:
        image = materialize.stored(image)  # otherwise XLA:CPU computes it again for each slice
    window_sum = None if filter_zero_point is None else _window_sum(operands, image)
    filter_sum = None if input_zero_point is None else by_filter(_filter_sum(operands, matrix))
    k = math.prod(matrix.shape[3:])
    if operands.channels_last:
        correction = zero_points.correction(input_zero_point, filter_zero_point, window_sum, filter_sum, k)
    else:
        correction = zero_points.correction(filter_zero_point, input_zero_point, filter_sum, window_sum, k)
    steps = (correction, *jax.tree.map(by_filter, epilogue))
    if matrix.shape[1] > 1:
        return _product_with_patches(operands, image, matrix, steps)
    ways = {"tpu": _convolution_of_xla, "default": _product_with_patches}
    if operands.is_wide:
        ways["cpu"] = _convolution_on_cpu
    return lax.platform_dependent(
        image, matrix, steps, **{name: functools.partial(_in_layout, operands, way) for name, way in ways.items()}
    )


def _in_layout(operands: _Operands, way, image: jax.Array, matrix: jax.Array, epilogue: Epilogue) -> jax.Array:
    """The result of a `way`, in the layout of the result. XLA:CPU transposes the product in the loop of the epilogue."""
    if not operands.channels_last:
        return way(operands, image, matrix, epilogue)
    if operands.result_last:
        return jnp.swapaxes(way(operands, image, matrix, epilogue), 1, 2)
    product = jnp.swapaxes(way(operands, image, matrix, ()), 2, 3)
    return epilogues.apply(jax.tree.map(lambda x: jnp.swapaxes(x, 2, 3), epilogue), product)


def _filter_sum(operands: _Operands, matrix: jax.Array) -> jax.Array:
    """The sum of each filter in int8, with its elements taken in the order that they have in memory."""
    if operands.filters_last:
        return zero_points.column_sum(_columns(matrix))
    return zero_points.row_sum(_rows(matrix, operands.by_channel))


def _rows(matrix: jax.Array, by_channel: bool) -> jax.Array:
    """Each filter as a row, with all elements of a channel together, or all channels of an element."""
    return (matrix if by_channel else jnp.moveaxis(matrix, 3, -1)).reshape(*matrix.shape[:3], math.prod(matrix.shape[3:]))


def _columns(matrix: jax.Array) -> jax.Array:
    """Each filter as a column, with all channels of an element together."""
    _, groups, filters, *elements = matrix.shape
    # XLA takes out a transposition that undoes another, but not across a reshape, even by dimensions of size 1.
    joined = jnp.squeeze(matrix, (0, 1)) if groups == 1 else matrix
    first = joined.ndim - matrix.ndim + 2
    columns = jnp.moveaxis(joined, (first + 1, first), (-2, -1))
    columns = columns.reshape(*columns.shape[:first], math.prod(elements), filters)
    return lax.expand_dims(columns, (0, 1)) if groups == 1 else columns


def _window_sum(operands: _Operands, image: jax.Array) -> jax.Array:
    """The sum over each window of a padded image in int8: over the channels first, which leaves much less to sum."""
    summed = zero_points.row_sum if operands.channels_last else zero_points.column_sum
    sizes = list(image.shape)
    sizes[operands.channels] = 1
    by_pixel = summed(operands.matrices(image))
    by_pixel = (jnp.swapaxes(by_pixel, 1, 2) if operands.channels_last else by_pixel).reshape(sizes)
    sums = operands.matrices(operands.windows.sums(by_pixel, operands.first_spatial))
    if operands.result_last or math.prod(operands.windows.sizes) == 1:
        return sums
    # XLA:CPU would add up each window again for each filter, in the loop of the epilogue.
    return materialize.once_on_cpu(sums)


def _product_with_patches(operands: _Operands, image: jax.Array, matrix: jax.Array, epilogue: Epilogue) -> jax.Array:
    windows, first = operands.windows, operands.first_spatial
    if operands.channels_last:
        patches = operands.matrices(windows.patches(image, first, operands.channels))
        if operands.filters_last:
            return integer_dot(patches, _columns(matrix), epilogue)
        return integer_dot(patches, _rows(matrix, by_channel=False), epilogue, transpose_b=True)
    if operands.by_channel:
        patches = windows.patches(jnp.expand_dims(image, 3), first + 1, 3)
        patches = patches.reshape(*patches.shape[:2], math.prod(patches.shape[2:4]), *patches.shape[4:])
    else:
        patches = windows.patches(image, first, operands.channels)
    return integer_dot(_rows(matrix, operands.by_channel), operands.matrices(patches), epilogue)


def _convolution_of_xla(operands: _Operands, image: jax.Array, matrix: jax.Array, epilogue: Epilogue) -> jax.Array:
    """The same without patches in memory. XLA's TPU programs for it use the int8 unit, unless there are groups.

    That was read from the programs, not measured. On a CPU it is a slow loop; on GPUs it has not been tried.
    """
    filter = jnp.squeeze(jnp.moveaxis(matrix, 3, -1), (0, 1))
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
        # Over explicit axes, JAX requires it if the filters are split.
        out_sharding=jax.typeof(image).sharding.update(spec=spec) if split[layout[1]] else None,
    )
    return epilogues.apply(epilogue, operands.matrices(jnp.expand_dims(product, group)))


def _convolution_on_cpu(operands: _Operands, image: jax.Array, matrix: jax.Array, epilogue: Epilogue) -> jax.Array:
    """XLA:CPU's convolution; or patches, if XLA partitions the program, or if a transformation maps the filters."""

    def convolve(image: jax.Array, matrix: jax.Array) -> tuple[jax.Array]:
        filters_are_mapped = math.prod(matrix.shape[: -len(operands.windows.sizes) - 2]) != 1
        return (_mapped(multiply if filters_are_mapped else one, operands.image.ndim, image, matrix),)

    def otherwise(image: jax.Array, matrix: jax.Array) -> tuple[jax.Array]:
        return (_mapped(multiply, operands.image.ndim, image, matrix),)

    one = functools.partial(_channels_last_convolution, operands)
    multiply = functools.partial(_product_with_patches, operands, epilogue=())
    (product,) = unless_partitioned(convolve, otherwise, image, matrix)
    return epilogues.apply(epilogue, product)


def _mapped(function, rank: int, image: jax.Array, matrix: jax.Array) -> jax.Array:
    """`function` over the leading dimensions that `unless_partitioned` adds to both, which broadcast."""
    if image.ndim == rank:
        return function(image, matrix)
    axes = 0 if image.shape[0] != 1 or matrix.shape[0] == 1 else None, None if matrix.shape[0] == 1 else 0
    parts = (x[0] if axis is None else x for x, axis in zip((image, matrix), axes, strict=True))
    return jax.vmap(functools.partial(_mapped, function, rank), axes)(*parts)


def _channels_last_convolution(operands: _Operands, image: jax.Array, matrix: jax.Array) -> jax.Array:
    """The one form of convolution that XLA:CPU has fast code for: int8, NHWC and HWIO."""
    windows = operands.windows
    image = jnp.squeeze(image, -2)
    # Between two reshapes, XLA does not see the transposition: it would fold it into the convolution, which then is a loop.
    filters, channels, *sizes = matrix.shape[2:]
    filter = matrix.reshape(filters, channels, math.prod(sizes))
    filter = jnp.transpose(filter, (2, 1, 0)).reshape(*sizes, channels, filters)
    strides, dilations = windows.strides, windows.dilations
    if len(windows.sizes) == 1:
        image, filter = jnp.expand_dims(image, 1), jnp.expand_dims(filter, 0)
        strides, dilations = (1, *strides), (1, *dilations)
    product = lax.conv_general_dilated(
        image,
        filter,
        window_strides=strides,
        padding="VALID",
        rhs_dilation=dilations,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        preferred_element_type=jnp.int32,
    )
    return product.reshape(product.shape[0], 1, math.prod(product.shape[1:3]), product.shape[3])
