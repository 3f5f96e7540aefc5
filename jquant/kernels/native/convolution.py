"""The convolution by the library."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jquant.formulas.convolution_geometry import Geometry
from jquant.kernels import epilogue as epilogues
from jquant.kernels.epilogue import Epilogue
from jquant.kernels.native import product
from jquant.kernels.native.epilogue import Fused, fused, nothing, takes_scales
from jquant.kernels.native.shared_library import CONVOLUTION, require
from jquant.kernels.zero_point import ZeroPoints

_MOST_SPATIAL_DIMENSIONS = 3

# With fewer multiplications, as in a step of a network that reads one frame at a time, a call takes longer than XLA's loops,
# which become part of the loops around them.
_FEWEST_MULTIPLICATIONS = 2**13


def convolution(
    input: jax.Array,
    filter: jax.Array,
    input_zero_point: jax.Array | None,
    filter_zero_point: jax.Array | None,
    geometry: Geometry,
    epilogue: Epilogue,
) -> jax.Array:
    """``epilogue(convolution of (input - input_zero_point) and (filter - filter_zero_point))``, as `dispatch` defines it.

    The input keeps its channels where they are, last or second, and the filters stay as they lie in memory if the library
    can read them so. It takes a product of matrices to be computed, whose rows are the windows, and whose columns are the
    filters; with the channels second, the rows are the filters, and the columns the windows.

    Raises:
      NotImplementedError: the library cannot be used, or sizes are symbolic; an array is empty; there are more than 3
        spatial dimensions; or there is little to compute.
    """
    function = require(CONVOLUTION, *input.shape, *filter.shape)
    channels_last, windows = geometry.channels_last, geometry.windows
    input = geometry.arranged(input, channels_last=channels_last)
    batch, *space = input.shape[:-1] if channels_last else (input.shape[0], *input.shape[2:])
    counts = windows.counts(space)
    if not input.size * filter.size or len(space) > _MOST_SPATIAL_DIMENSIONS:
        raise NotImplementedError("implementation native does not support empty arrays, or more than 3 spatial dimensions")
    matrix, filters_last = _matrix(filter, geometry)
    filters = filter.shape[geometry.dimensions.rhs_spec[0]]
    shape = (batch, *counts, filters) if channels_last else (batch, filters, *counts)
    if geometry.groups == 1 and tuple(space) == windows.sizes and not any(map(any, windows.padding)):
        output = _of_one_window(input, matrix, input_zero_point, filter_zero_point, epilogue, transposed=not filters_last)
        return geometry.restored(output.reshape(shape), channels_last=channels_last)

    multiplications = batch * math.prod(counts) * filter.size
    if multiplications < _FEWEST_MULTIPLICATIONS:
        raise NotImplementedError("implementation native leaves convolutions of few multiplications to XLA")
    if not takes_scales(function, multiplications):
        input_zero_point, filter_zero_point = (
            None if point is None else point.astype(jnp.int32) for point in (input_zero_point, filter_zero_point)
        )
        epilogue = epilogues.prepared(epilogue)

    def by_filter(x: jax.Array) -> jax.Array:
        """An array of one element or one for each filter as an array of a batch of products, one for each group."""
        if x.size == 1:
            return x.reshape(1, 1, 1)
        groups = geometry.groups
        return x.reshape((groups, 1, filters // groups) if channels_last else (groups, filters // groups, 1))

    first = _fused(jax.tree.map(by_filter, epilogue), channels_last)
    points = (input_zero_point, filter_zero_point) if channels_last else (filter_zero_point, input_zero_point)
    named = zip(("a_zero_point", "b_zero_point"), points, strict=True)
    named = {role: by_filter(point) for role, point in named if point is not None}
    named |= zip(first.roles, first.arrays, strict=True)
    output = jax.ffi.ffi_call(function.target, jax.ShapeDtypeStruct(shape, first.dtype))(
        input,
        matrix,
        *named.values(),
        channels_last=channels_last,
        filters_last=filters_last,
        groups=np.int64(geometry.groups),
        sizes=np.array(windows.sizes, np.int64),
        strides=np.array(windows.strides, np.int64),
        dilations=np.array(windows.dilations, np.int64),
        padding=np.array([low for low, _ in windows.padding], np.int64),  # the shape of the output implies the rest
        roles=" ".join(named),
    )
    if first.rest:
        ones = (1,) * len(space)
        along = (1, *ones, -1) if channels_last else (1, -1, *ones)
        output = epilogues.apply(jax.tree.map(lambda x: x.reshape(along), first.rest), output)
    return geometry.restored(output, channels_last=channels_last)


def _of_one_window(
    input: jax.Array,
    matrix: jax.Array,
    input_zero_point: jax.Array | None,
    filter_zero_point: jax.Array | None,
    epilogue: Epilogue,
    *,
    transposed: bool,
) -> jax.Array:
    """The convolution of images that are as large as the filters: a product with a row for each image."""

    def row(x: jax.Array) -> jax.Array:
        return x.reshape(1, x.size)

    points = (None if point is None else row(point) for point in (input_zero_point, filter_zero_point))
    rows = input.reshape(input.shape[0], input.size // input.shape[0])
    return product.multiply(rows, matrix, ZeroPoints(*points), jax.tree.map(row, epilogue), transpose_b=transposed)


def _matrix(filter: jax.Array, geometry: Geometry) -> tuple[jax.Array, bool]:
    """The filters as the rows of a matrix, or as its columns, and whether they are columns.

    They are columns if filters are the last dimension in memory, as in HWIO, and the channels of the input are last, too.
    """
    filters, channels, *elements = geometry.dimensions.rhs_spec
    number, depth = filter.shape[filters], filter.size // filter.shape[filters]
    if geometry.channels_last and filters == filter.ndim - 1:
        return jnp.transpose(filter, (*elements, channels, filters)).reshape(depth, number), True
    order = (filters, *elements, channels) if geometry.channels_last else (filters, channels, *elements)
    return jnp.transpose(filter, order).reshape(number, depth), False


def _fused(epilogue: Epilogue, channels_last: bool) -> Fused:
    """As many steps as the library knows. With the channels last, scales of rows and zero points are one for all filters."""
    first = fused(epilogue)
    named = dict(zip(first.roles, first.arrays, strict=True))
    if "row_scale" in named and named["row_scale"].size > 1:
        named["row_scale"], named["column_scale"] = named["column_scale"], named["row_scale"]
    of_rows = (named[role] for role in ("row_scale", "zero_point") if role in named)
    if channels_last and any(x.size > 1 for x in of_rows):
        return nothing(np.int32, epilogue)
    return first._replace(arrays=tuple(named.values()))
